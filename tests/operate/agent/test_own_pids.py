"""Whoever ends the shim ends everything that was started under it: for certain in a PID namespace, as far as marks go elsewhere."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from phalanx.operate.agent import own_pids, processes
from tests.operate.agent.agent_cell import DEADLINE_S, Cell, alive, outside, until

HIDING = """
import os, signal, sys
def wait():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.environ["RANK"] if "RANK" in os.environ else "hidden", os.getpid(), flush=True)
    while True:
        signal.pause()
if len(sys.argv) > 1:
    wait()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"], {})
    os._exit(0)
os.wait()
wait()
"""
"""Twice forked, in a session of its own, its environment cleared: nothing names it or its parent any more."""

FAMILY = """
import os, signal, subprocess, sys
inner = [sys.executable, "-c", "import signal\\nwhile True: signal.pause()"]
marked = subprocess.Popen(inner, start_new_session=True)
bare = subprocess.Popen(inner, start_new_session=True, env={})
print(marked.pid, bare.pid, flush=True)
signal.pause()
"""

WHO = """
import json, os, psutil
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "proc": int(os.readlink("/proc/self")), "status": int(status["Pid"]),
    "psutil": psutil.Process().pid, "seen": sorted(psutil.pids()), "shm": os.stat("/dev/shm").st_dev,
    "boot": open("/proc/sys/kernel/random/boot_id").read().strip(),
}))
"""


def claimed(cell: Cell) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((cell.folder() / "shim-pid.json").read_bytes())
    return found


def hidden_up(cell: Cell) -> tuple[int, int]:
    """The rank and what it hid, as this machine numbers them."""
    cell.far.start(cell.launch(HIDING, ranks=1))
    [rank] = [process.pid for process in cell.far.phase("demo-1.1", "running").ranks]
    words = until(lambda: found if len(found := cell.far.text("log", "demo-1.1", 0).split()) == 4 else None)
    said = dict(zip(words[::2], words[1::2], strict=True))
    assert outside(int(said["0"]), rank) == rank
    return rank, outside(int(said["hidden"]), rank)


@pytest.mark.needs_root
def test_a_killed_shim_takes_along_what_hid_from_it(cell: Cell) -> None:
    rank, hidden = hidden_up(cell)
    assert claimed(cell)["init"]["pid"] not in (rank, hidden)
    os.kill(cell.shim_pid(), signal.SIGKILL)
    report = cell.far.phase("demo-1.1", "ended")
    assert "died without exit records" in report.lost
    assert not any(alive(pid) for pid in (rank, hidden, claimed(cell)["init"]["pid"]))


@pytest.mark.needs_root
def test_it_does_so_at_once_when_no_agent_is_there_either(cell: Cell) -> None:
    rank, hidden = hidden_up(cell)
    cell.agent.end(signal.SIGKILL)
    os.kill(cell.shim_pid(), signal.SIGKILL)
    until(lambda: not alive(rank) and not alive(hidden))
    cell.agent.start()
    assert cell.far.phase("demo-1.1", "ended").lost


def test_what_hid_is_gone_too_when_its_rank_has_ended(cell: Cell) -> None:
    rank, hidden = hidden_up(cell)
    os.kill(rank, signal.SIGKILL)
    assert [exited.code for exited in cell.far.phase("demo-1.1", "ended").exits] == [-9]
    assert not alive(hidden)


@pytest.mark.needs_root
def test_an_init_that_is_killed_takes_the_ranks_along_with_exit_records(cell: Cell) -> None:
    rank, hidden = hidden_up(cell)
    os.kill(claimed(cell)["init"]["pid"], signal.SIGKILL)
    report = cell.far.phase("demo-1.1", "ended")
    assert ([(exited.code, exited.first) for exited in report.exits], report.lost) == ([(-9, True)], "")
    assert not alive(rank)
    assert not alive(hidden)


def test_without_the_permission_ranks_die_with_their_shim_and_what_carries_marks_is_swept(cell: Cell) -> None:
    cell.agent.end()
    cell.agent.namespaces = False
    cell.agent.start()
    cell.far.start(cell.launch(FAMILY))
    until(lambda: all(cell.far.text("log", "demo-1.1", rank) for rank in range(2)))
    pids = [process.pid for process in cell.far.phase("demo-1.1", "running").ranks]
    assert "init" not in claimed(cell)
    families = [[int(pid) for pid in cell.far.text("log", "demo-1.1", rank).split()] for rank in range(2)]
    os.kill(cell.shim_pid(), signal.SIGKILL)
    report = cell.far.phase("demo-1.1", "ended")
    assert "died without exit records" in report.lost
    assert not any(alive(pid) for pid in [*pids, *(marked for marked, _ in families)])
    for _, bare in families:  # it cleared its environment and its shim is dead: only a PID namespace would hold it
        os.kill(bare, signal.SIGKILL)


def test_a_rank_agrees_with_its_proc_and_the_machine_knows_it_by_the_number_that_is_reported(cell: Cell) -> None:
    cell.far.start(cell.launch(WHO))
    report = cell.far.phase("demo-1.1", "ended")
    for rank in range(2):
        said = json.loads(cell.far.text("log", "demo-1.1", rank))
        assert said["pid"] == said["proc"] == said["status"] == said["psutil"]
        assert said["pid"] in said["seen"]
        assert (said["shm"], said["boot"]) == (Path("/dev/shm").stat().st_dev, processes.boot_id())  # by which NCCL knows its host
        if "init" in claimed(cell):
            assert (said["parent"], said["seen"][0]) == (0, 1)
            assert len(said["seen"]) <= 3  # the init and both ranks
        else:
            assert (said["pid"], said["parent"]) == (report.ranks[rank].pid, claimed(cell)["pid"])


def test_reported_numbers_are_the_shims_children_on_this_machine(cell: Cell) -> None:
    cell.far.start(cell.launch("import signal; signal.pause()"))
    pids = {process.pid for process in cell.far.phase("demo-1.1", "running").ranks}
    shim_pid = claimed(cell)["pid"]
    children = {int(pid) for pid in Path(f"/proc/{shim_pid}/task/{shim_pid}/children").read_text().split()}
    init = {claimed(cell)["init"]["pid"]} if "init" in claimed(cell) else set()
    assert children == pids | init


MASKED = """
set -e
mount --bind "$1/mask" /proc/version
exec "$2" -c "
import os, sys
from phalanx.operate.agent import own_pids
assert own_pids.enter()
if os.fork() == 0:
    own_pids.own_proc()
    print(open('/proc/version').read(), os.getpid() == int(os.readlink('/proc/self')), flush=True)
    os._exit(0)
os.wait()
"
"""


@pytest.mark.needs_root
def test_what_a_container_mounted_inside_proc_stays_there(tmp_path: Path) -> None:
    (tmp_path / "mask").write_text("masked")
    argv = ["unshare", "--mount", "sh", "-c", MASKED, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.stdout.split(), done.stderr) == (["masked", "True"], "")


@pytest.mark.needs_root
def test_where_proc_cannot_be_mounted_nothing_has_changed() -> None:
    program = """
import os
from phalanx.operate.agent import own_pids
own_pids.own_proc = lambda: (_ for _ in ()).throw(PermissionError("as a container's profile may say"))
assert own_pids.enter() is None
child = os.fork()
if child == 0:
    os._exit(0 if os.getpid() > 10 and os.getppid() > 0 else 1)
assert os.waitpid(child, 0)[1] == 0
assert os.readlink("/proc/self/ns/pid") == os.readlink("/proc/self/ns/pid_for_children")
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=DEADLINE_S).returncode == 0


def test_mount_points_are_read_as_the_kernel_escapes_them() -> None:
    mountinfo = (
        b"22 1 0:21 / /proc rw,relatime - proc proc rw\n"
        b"30 22 0:27 / /proc/sys/fs/binfmt_misc rw shared:10 - autofs systemd-1 rw,fd=29\n"
        b"31 22 0:28 / /proc/with\\040space\\134 rw - tmpfs tmpfs rw\n"
    )
    assert list(own_pids._mount_points(mountinfo)) == [b"/proc", b"/proc/with space\\"]
