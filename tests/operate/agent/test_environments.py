"""Environments are built once by real uv, kept by their content, and complete or absent."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from make_wheels import make_wheel

from phalanx.core.errors import SetupError, SpecError, StoreUnavailable
from phalanx.operate.agent import environments
from phalanx.operate.agent.environments import Environment, Wanted, find_uv, has_module
from phalanx.operate.agent.processes import start_ticks
from tests.operate.agent.lock_cases import LOCAL, Bench

DEADLINE_S = 60.0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def ready(bench: Bench, wanted: Wanted) -> Environment:
    return await environments.ready(bench.environments, wanted, bench.outer, find_uv())


def built(bench: Bench, wanted: Wanted) -> Environment:
    return asyncio.run(ready(bench, wanted))


def printed(environment: Environment, program: str) -> str:
    return subprocess.run([environment.python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


async def come_true(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        await asyncio.sleep(0.01)


def building(gate: Path) -> list[int]:
    """Pids of builds that wait at the gate."""
    return [int(path.name.partition("-")[2]) for path in gate.glob("building-*")]


def test_a_requirements_file_is_built_once_and_found_again(bench: Bench) -> None:
    folder = bench.workdir({"needs.txt": f"{LOCAL}tiny-greeting==1.0\n"})
    first = built(bench, wanted := bench.wanted(folder, "needs.txt"))
    assert printed(first, "import tiny_greeting; print(tiny_greeting.VERSION)") == "1.0"
    log = wanted.log.read_text()
    assert log.startswith(f"phalanx: builds environment {first.key[:12]} of needs.txt\n")
    assert "+ tiny-greeting==1.0" in log, "uv's own words are in the log"
    marker = bench.environments / first.key / "ready.json"
    assert json.loads(marker.read_text())["key"] == first.key
    os.utime(marker, (1, 1))
    again = built(bench, other := bench.wanted(folder, "needs.txt", "demo-2.1"))
    assert again == first
    assert not other.log.exists(), "nothing is said when there is nothing to do"
    assert marker.stat().st_mtime > 1, "its time says when it was last used"
    assert json.loads((other.attempt / "environment.json").read_text()) == {"key": first.key, "lock": "needs.txt"}
    assert environments.short_key(other.attempt) == first.key[:12]


def test_two_versions_of_one_package_lie_side_by_side(bench: Bench) -> None:
    folder = bench.workdir({"old.txt": f"{LOCAL}tiny-greeting==1.0\n", "new.txt": f"{LOCAL}tiny-greeting==2.0\n"})
    program = "import tiny_greeting; print(tiny_greeting.VERSION)"
    made = [built(bench, bench.wanted(folder, lock)) for lock in ("old.txt", "new.txt")]
    assert [printed(environment, program) for environment in made] == ["1.0", "2.0"]


def test_a_uv_lock_is_built_without_the_project_and_its_development_packages(bench: Bench) -> None:
    project = (
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["needy==1.0"]\n'
        '[dependency-groups]\ndev = ["only-dev"]\n[tool.uv]\nno-index = true\nfind-links = ["./wheels"]\n'
    )
    folder = bench.workdir({"pyproject.toml": project})
    make_wheel(folder / "wheels", "only_dev", "1.0")
    uv = find_uv()
    assert uv is not None
    subprocess.run([uv, "lock", f"--python={sys.executable}"], cwd=folder, env=bench.outer, check=True, capture_output=True)
    environment = built(bench, bench.wanted(folder, "uv.lock"))
    names = "import importlib.metadata as m; print(sorted(d.name.replace('_', '-') for d in m.distributions()))"
    assert printed(environment, names) == "['needy', 'tiny-greeting']"
    assert not (folder / ".venv").exists()


def test_two_that_want_the_same_wait_for_one_build(bench: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    folder = bench.workdir({"needs.txt": "./slow\n", **bench.slow(gate)})
    wanted = [bench.wanted(folder, "needs.txt", attempt) for attempt in ("demo-1.1", "demo-2.1")]

    async def both() -> list[Environment]:
        running = [asyncio.create_task(ready(bench, one)) for one in wanted]
        await come_true(lambda: building(gate) and any("waits for environment" in said(one) for one in wanted))
        (gate / "open").touch()
        return await asyncio.gather(*running)

    first, second = asyncio.run(both())
    assert first == second
    assert len(building(gate)) == 1
    assert printed(first, "import slow; print(slow.VERSION)") == "1.0"


def said(wanted: Wanted) -> str:
    return wanted.log.read_text() if wanted.log.exists() else ""


def test_two_different_ones_are_built_side_by_side(bench: Bench, tmp_path: Path) -> None:
    gates = [tmp_path / "gate-a", tmp_path / "gate-b"]
    folders = [bench.workdir({"needs.txt": "./slow\n", **bench.slow(gate)}, gate.name + "-code") for gate in gates]

    async def both() -> list[Environment]:
        running = [asyncio.create_task(ready(bench, bench.wanted(folder, "needs.txt", folder.name))) for folder in folders]
        await come_true(lambda: all(building(gate) for gate in gates))  # at the same time
        for gate in gates:
            (gate / "open").touch()
        return await asyncio.gather(*running)

    first, second = asyncio.run(both())
    assert first.key != second.key


def test_a_build_that_is_given_up_ends_at_once_and_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    folder = bench.workdir({"needs.txt": "./slow\n", **bench.slow(gate)})

    async def given_up() -> float:
        running = asyncio.create_task(ready(bench, bench.wanted(folder, "needs.txt")))
        await come_true(lambda: building(gate))
        start = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return time.monotonic() - start

    assert asyncio.run(given_up()) < 5
    assert all(start_ticks(pid) is None for pid in building(gate))
    assert [path.name for path in bench.environments.iterdir() if not path.name.endswith(".lock")] == []


def test_what_a_cut_off_build_left_is_ended_removed_and_built_again(bench: Bench, tmp_path: Path) -> None:
    folder = bench.workdir({"needs.txt": f"{LOCAL}tiny-greeting==1.0\n"})
    first = built(bench, bench.wanted(folder, "needs.txt"))
    path = bench.environments / first.key
    (path / "ready.json").unlink()
    (path / "venv" / "junk").write_text("half")
    env = {**os.environ, "PHALANX_BUILD": str(path)}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env) as orphan:
        again = built(bench, bench.wanted(folder, "needs.txt"))
        assert orphan.wait(DEADLINE_S) == -9
    assert again == first
    assert not (path / "venv" / "junk").exists()
    assert (path / "ready.json").exists()


KILLED = """
import asyncio, os, pathlib, signal, sys
from phalanx.operate.agent import environments
from phalanx.operate.agent.environments import Wanted
point, number, side, root, lock, work, code, packed, attempt = sys.argv[1:]
real, seen = getattr(environments, point), []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def cut(*args, **kwargs):
    seen.append(point)
    if len(seen) == int(number) and side == "before":
        die()
    done = real(*args, **kwargs)
    if len(seen) == int(number):
        if not asyncio.iscoroutine(done):
            die()
        async def then_die():
            await done
            die()
        return then_die()
    return done

setattr(environments, point, cut)
place = pathlib.Path(attempt)
wanted = Wanted(lock, pathlib.Path(work), code, pathlib.Path(packed).read_bytes(), place, place / "rank-0.log")
asyncio.run(environments.ready(pathlib.Path(root), wanted, dict(os.environ), environments.find_uv()))
"""
POINTS = [(point, 1) for point in ("_lay_out", "_seal", "write_atomic", "_note_use")] + [
    ("run_logged", number) for number in (1, 2, 3)
]


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize(("point", "number"), POINTS)
def test_a_builder_killed_at_any_point_leaves_a_complete_environment_or_none(
    bench: Bench, tmp_path: Path, point: str, number: int, side: str
) -> None:
    folder = bench.workdir({"needs.txt": f"{LOCAL}tiny-greeting==1.0\n"})
    wanted = bench.wanted(folder, "needs.txt")
    (tmp_path / "packed").write_bytes(wanted.packed)
    words = [point, str(number), side, bench.environments, wanted.lock, folder, wanted.code, tmp_path / "packed", wanted.attempt]
    assert subprocess.run([sys.executable, "-c", KILLED, *map(str, words)], env=bench.outer).returncode == -9
    for marker in bench.environments.glob("*/ready.json"):
        assert printed_version(marker.parent) == "1.0", "what is marked complete is"
    assert printed_version(bench.environments / built(bench, wanted).key) == "1.0"


def printed_version(path: Path) -> str:
    program = [str(environments.python_of(path)), "-c", "import tiny_greeting; print(tiny_greeting.VERSION)"]
    return subprocess.run(program, capture_output=True, text=True).stdout.strip()


def test_what_is_being_removed_never_passes_for_complete(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bench.workdir({"needs.txt": f"{LOCAL}tiny-greeting==1.0\n"})
    path = bench.environments / built(bench, bench.wanted(folder, "needs.txt")).key
    monkeypatch.setattr(environments, "clear", lambda _: False)  # as when the process ends there
    assert environments.remove(path) is False
    assert environments.python_of(path).exists()
    assert not environments.is_ready(path)


def test_an_environment_whose_python_was_taken_away_is_built_again(bench: Bench) -> None:
    folder = bench.workdir({"needs.txt": f"{LOCAL}tiny-greeting==1.0\n"})
    first = built(bench, bench.wanted(folder, "needs.txt"))
    first.python.unlink()
    first.python.symlink_to("/no/such/python")
    assert printed(built(bench, bench.wanted(folder, "needs.txt")), "print(1)") == "1"


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        (f"{LOCAL}tiny-greeting==3.0\n", "there is no version of tiny-greeting==3.0"),
        ("tiny-greeting=1.0\n", "no such comparison operator"),
        (f"{LOCAL}needy==1.0\n", "`needy` requires `tiny-greeting`, but it's not installed; list what its packages need too"),
        (f"{LOCAL}tiny-greeting==1.0 --hash=sha256:{'0' * 64}\n", "Hash mismatch"),
        (f"{LOCAL}needy==1.0 --hash=sha256:{'0' * 64}\ntiny-greeting==1.0\n", "all requirements must have a hash"),
        (f"{LOCAL}./absent\n", "absent"),
    ],
)
def test_a_lock_that_uv_refuses_is_bad_input_with_its_words(bench: Bench, lock: str, words: str) -> None:
    folder = bench.workdir({"needs.txt": lock})
    wanted = bench.wanted(folder, "needs.txt")
    with pytest.raises(SpecError, match=r"environment\.lock") as refused:
        built(bench, wanted)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(bench.environments.glob("*/ready.json"))
    assert [path.name for path in bench.environments.iterdir() if not path.name.endswith(".lock")] == []


def test_an_index_that_does_not_answer_is_no_fault_of_the_lock(bench: Bench) -> None:
    folder = bench.workdir({"needs.txt": "--index-url http://127.0.0.1:9/simple\ntiny-greeting==1.0\n"})
    with pytest.raises(StoreUnavailable, match="cannot build it now"):
        built(bench, bench.wanted(folder, "needs.txt"))


def test_without_uv_the_node_says_so(bench: Bench) -> None:
    folder = bench.workdir({"needs.txt": f"{LOCAL}tiny-greeting==1.0\n"})
    with pytest.raises(SetupError, match="pip install uv"):
        asyncio.run(environments.ready(bench.environments, bench.wanted(folder, "needs.txt"), bench.outer, None))


def test_the_nodes_own_configuration_of_uv_counts(bench: Bench, tmp_path: Path) -> None:
    """An index and a cache that the node's owner set, for a lock that names none."""
    folder = bench.workdir({"needs.txt": "tiny-greeting==1.0\n"})
    shutil.move(folder / "wheels", tmp_path / "of-the-node")
    config = tmp_path / "uv.toml"
    config.write_text(f'no-index = true\nfind-links = ["{tmp_path / "of-the-node"}"]\n')
    outer = {**bench.outer, "UV_CONFIG_FILE": str(config)}
    wanted = bench.wanted(folder, "needs.txt")
    environment = asyncio.run(environments.ready(bench.environments, wanted, outer, find_uv()))
    assert printed(environment, "import tiny_greeting; print(tiny_greeting.VERSION)") == "1.0"


def test_what_is_in_an_environment_is_known(bench: Bench) -> None:
    folder = bench.workdir({"needs.txt": f"{LOCAL}tiny-greeting==1.0\n"})
    environment = built(bench, bench.wanted(folder, "needs.txt"))
    found = [asyncio.run(has_module(environment.python, name)) for name in ("tiny_greeting", "phalanx.job.train")]
    assert found == [True, False]
