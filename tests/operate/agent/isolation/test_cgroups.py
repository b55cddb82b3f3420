"""Control groups: what is written where, on the kernel's own where it has them, and on folders that stand for others."""

import os
import subprocess
from pathlib import Path

import pytest

from phalanx.core import isolation as names
from phalanx.operate.agent.isolation import cgroups
from phalanx.operate.agent.isolation.cgroups import Bounds, Cgroups

SLEEP = ["sleep", "600"]


def laid(tmp_path: Path, path: str, root: str, controllers: str) -> Path:
    """/proc/self of a machine whose groups of version 2 are mounted at `tmp_path/cg`: folders that stand for the kernel's."""
    proc, base = tmp_path / "self", tmp_path / "cg"
    proc.mkdir()
    (proc / "cgroup").write_text(f"3:cpu:/else\n0::{path}\n")
    (proc / "mountinfo").write_text(f"31 23 0:28 {root} {base} rw - cgroup2 cgroup2 rw\n")
    own = base / path.removeprefix(root).strip("/")
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text(controllers)
    (own / "cgroup.subtree_control").write_text("")
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    return own


@pytest.mark.parametrize(("path", "root"), [("/system.slice/phalanx.service", "/"), ("/", "/"), ("/docker/x/y", "/docker/x")])
def test_its_own_group_is_found_wherever_the_tree_is_mounted(tmp_path: Path, path: str, root: str) -> None:
    own = laid(tmp_path, path, root, "cpuset cpu memory pids")
    found = cgroups.find(tmp_path / "self")
    assert found.base == own and found.controllers == ("memory", "cpu", "pids")
    assert (own / cgroups.LEAF / "cgroup.procs").read_text() == str(os.getpid()), "it has stepped aside"


def test_an_agent_that_was_started_by_one_that_stepped_aside_uses_the_same_group(tmp_path: Path) -> None:
    inner = laid(tmp_path, f"/unit/{cgroups.LEAF}", "/", "memory")
    (inner.parent / "cgroup.controllers").write_text("memory")
    (inner.parent / "cgroup.subtree_control").write_text("memory")
    found = cgroups.find(tmp_path / "self")
    assert (found.base, found.controllers) == (inner.parent, ("memory",))


def test_controllers_that_are_not_given_are_said(tmp_path: Path) -> None:
    laid(tmp_path, "/a", "/", "pids")
    found = cgroups.find(tmp_path / "self")
    assert found.controllers == ("pids",) and found.lacks is not None
    assert "memory is not given" in found.lacks[names.MEMORY] and names.COUNTS in found.can()


def test_a_machine_without_them_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("9:pids:/\n")
    (tmp_path / "mountinfo").write_text("")
    found = cgroups.find(tmp_path)
    assert found.base is None and found.can() == () and found.made("x", Bounds()) is None
    assert found.lacks is not None and "not mounted" in found.lacks[names.MEMORY]


def test_bounds_are_written_only_where_the_kernel_keeps_them(tmp_path: Path) -> None:
    every = ("memory", "cpu", "pids")
    assert cgroups.settings(every, Bounds(2**30, 2.5)) == {"memory.max": "1073741824", "cpu.weight": "250", "pids.max": "32768"}
    assert cgroups.settings(every, Bounds()) == {"pids.max": "32768"}
    assert cgroups.settings((), Bounds(2**30, 2.5)) == {}
    assert cgroups.settings(("cpu",), Bounds(cpus=0.001)) == {"cpu.weight": "1"}
    group = Cgroups(tmp_path, ("memory",)).made("home demo-1.1", Bounds(4096))
    assert group is not None and (group / "memory.max").read_text() == "4096"


def test_what_the_kernel_killed_for_memory_is_counted(tmp_path: Path) -> None:
    """`memory.events` as a kernel writes it."""
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 41\noom 2\noom_kill 2\noom_group_kill 0\n")
    assert cgroups.ooms(str(tmp_path)) == 2
    (tmp_path / "memory.events").write_text("garbage")
    assert cgroups.ooms(str(tmp_path)) == 0 and cgroups.ooms(str(tmp_path / "gone")) == 0


def test_the_kernels_own_groups_hold_a_process_and_end_it() -> None:
    found = cgroups.find()
    if found.base is None:
        assert found.lacks is not None and all(found.lacks.values())  # said, and nothing to try
        return
    group = found.made(f"test {os.getpid()}", Bounds())
    assert group is not None
    child = subprocess.Popen(SLEEP, preexec_fn=lambda: cgroups.join(str(group)))  # noqa: PLW1509 - one thread
    assert (group / "cgroup.procs").read_text().split() == [str(child.pid)]
    assert cgroups.ended(group) and not group.exists()
    assert child.wait(60) == -9
    assert cgroups.ended(group), "again, as after a crash"
