"""The real shim with a gang that recovers: survivors keep their processes, spares take places, and every end is as of any gang."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.timeouts import Timeouts, as_dict
from phalanx.operate.agent.launch_env import GangPlace
from phalanx.operate.agent.processes import children
from phalanx.operate.agent.writing import NAME
from tests.operate.agent.agent_cell import alive, until
from tests.operate.agent.gang.slow_disk import stalled
from tests.operate.agent.test_shim import Order

PROGRAM = str(Path(__file__).with_name("gang_program.py"))
FAST = Timeouts(beat_ms=50, silent_ms=3_500, gather_ms=40_000, hang_ms=5_000, kill_ms=40_000, form_ms=60_000)
"""As fast as a machine allows that stalls for seconds."""

HEAVY_BYTES = 2 << 30
HEAVY_TRIES = 10


def slow_to_replace(folder: Path) -> str:
    """The program, whose spares are never ready."""
    path = folder / "slow.py"
    lines = [
        "import os, runpy, time",
        "if 'RANK' not in os.environ: time.sleep(600)",
        f"runpy.run_path({PROGRAM!r}, run_name='__main__')",
    ]
    path.write_text("\n".join(lines))
    return str(path)


class GangOrder(Order):
    """`Order` of two ranks with a coordinator."""

    def __init__(self, folder: Path, program: str = PROGRAM, spares: int = 1, world_size: int = 2, **env: str) -> None:
        super().__init__(folder, [[sys.executable, program]] * world_size)
        path = folder / "shim.json"
        order = json.loads(path.read_bytes())
        place = GangPlace(folder / "gang", "t" * 64, spares, FAST)
        order["gang"] = place.order()
        assert order["gang"]["timeouts"] == as_dict(FAST)
        for rank, entry in enumerate(order["ranks"]):
            entry["env"] |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LAST": "2"} | env | place.env(rank)
        path.write_text(json.dumps(order))

    def generations(self, rank: int) -> list[tuple[int, int]]:
        """(generation, pid) of each that the rank's log names."""
        return [(int(found[1]), int(found[2])) for found in re.finditer(r"generation (\d+) as rank .*?pid (\d+)", self.log(rank))]

    def exits(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_bytes()) for path in sorted((self.folder / "exits").glob("rank-*.json"))]


@pytest.fixture
def started() -> Iterator[list[GangOrder]]:
    made: list[GangOrder] = []
    yield made
    for order in made:
        if order.process is not None and order.process.poll() is None:
            order.process.kill()
            order.process.wait()


@pytest.mark.parametrize("fault", ["sigkill", "sigstop", "hang"])
def test_survivors_keep_their_processes_and_another_takes_the_place(tmp_path: Path, started: list[GangOrder], fault: str) -> None:
    """Two gangs at a time, one with a spare: what hangs is waited for once."""
    for spares in (0, 1):
        order = GangOrder(tmp_path / str(spares), spares=spares, FAULT=fault)
        started.append(order)
        order.start()
    for order, before in [(order, order.pids()) for order in started]:
        assert order.end() == [0, 0], order.said() + order.log(0) + order.log(1)
        check_replaced(order, before, fault)


def check_replaced(order: GangOrder, before: list[int], fault: str) -> None:
    (one, fell), (two, came) = order.generations(0)
    assert (one, two) == (1, 2)
    assert fell != came
    assert [number for number, _ in order.generations(1)] == [1, 2]
    assert len({pid for _, pid in order.generations(1)}) == 1, "the survivor is the same process"
    assert order.pids()[1] == before[1]
    assert order.pids()[0] != before[0], "the agent is told who rank 0 is now"
    assert order.ended["lost"] == ""
    assert not any(exited["first"] for exited in order.exits())
    why = {"sigkill": "rank 0 was killed by SIGKILL", "sigstop": "it hung", "hang": "it hung"}[fault]
    assert why in order.log(1)
    assert not (order.folder / "gang").exists()


def test_survivors_do_not_wait_for_the_end_of_a_large_process_and_whoever_takes_its_place_does(
    tmp_path: Path, started: list[GangOrder]
) -> None:
    """The kernel needs seconds for what has tens of gigabytes; a moment for these. It is looked at while that lasts."""
    overlaps = False
    for attempt in range(HEAVY_TRIES):
        order = GangOrder(tmp_path / str(attempt), FAULT="sigkill", HEAVY_BYTES=str(HEAVY_BYTES))
        started.append(order)
        order.start()
        heavy = Path(f"/proc/{order.pids()[0]}")
        while len(order.generations(0)) < 2:
            is_over, is_there = "generation 1 is over" in order.said(), heavy.exists()
            overlaps |= is_over and is_there
            assert order.process is not None and order.process.poll() is None, order.said()
        assert not heavy.exists(), "its device may not have room for two"
        assert order.end() == [0, 0], order.said()
        assert "rank 0 was killed by SIGKILL" in order.log(1)
        if overlaps:
            return
    pytest.fail("the generation was over only once the process was gone")


def test_an_exit_code_of_its_own_ends_the_gang_as_ever(tmp_path: Path, started: list[GangOrder]) -> None:
    order = GangOrder(tmp_path / "a", FAULT="exit")
    started.append(order)
    order.start()
    assert order.end() == [3, -15], order.said()
    assert [exited["first"] for exited in order.exits()] == [True, False]


@pytest.mark.parametrize("own_pids", [True, False])
def test_without_a_fault_it_is_a_gang_like_any_other_and_its_spares_end_with_it(
    tmp_path: Path, started: list[GangOrder], own_pids: bool
) -> None:
    order = GangOrder(tmp_path / "a", LAST="1", spares=2)
    path = order.folder / "shim.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"own_pids": own_pids}))
    started.append(order)
    order.start()
    assert order.end() == [0, 0], order.said()
    assert order.ended["swept"] == 0, "no spare had to be looked for"


def test_a_stop_while_a_place_is_empty_leaves_the_record_of_the_one_that_fell(tmp_path: Path, started: list[GangOrder]) -> None:
    order = GangOrder(tmp_path / "a", slow_to_replace(tmp_path), spares=1, FAULT="sigkill")
    started.append(order)
    order.start()
    until(lambda: "is over" in order.said())
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(str(order.folder / "s"))
        agent.sendall(b'{"stop": 60000}\n')
        assert order.end() == [-9, -15]
    assert not any(exited["first"] for exited in order.exits())


def test_the_platforms_end_interrupts_it_also_when_nobody_is_left_but_a_spare(tmp_path: Path, started: list[GangOrder]) -> None:
    order = GangOrder(tmp_path / "a", slow_to_replace(tmp_path), world_size=1, FAULT="sigkill")
    started.append(order)
    order.start()
    until(lambda: "is over" in order.said())
    order.platform_ends()
    assert order.end() == [-9]
    assert order.ended["interrupted"] is True


def test_ranks_that_never_speak_to_it_end_as_ever(tmp_path: Path, started: list[GangOrder]) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text("import os, signal, time\nif os.environ['RANK'] == '0':\n    os.kill(os.getpid(), 9)\ntime.sleep(600)")
    order = GangOrder(tmp_path / "a", str(plain))
    started.append(order)
    order.start()
    assert order.end() == [-9, -15]
    assert [exited["first"] for exited in order.exits()] == [True, False]
    assert not list(order.folder.glob("spare-*.log"))


def test_the_shims_death_takes_ranks_and_spares_along(tmp_path: Path, started: list[GangOrder]) -> None:
    order = GangOrder(tmp_path / "a", LAST="9", spares=1)
    started.append(order)
    order.start()
    until(lambda: list(order.folder.glob("spare-*.log")))
    pids = [*order.pids(), writer_of(order)]
    assert order.process is not None
    order.process.send_signal(signal.SIGKILL)
    order.process.wait()
    until(lambda: not any(alive(pid) for pid in pids))
    marked = [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if _carries(path, str(order.folder))]
    until(lambda: not any(alive(int(pid)) for pid in marked))


def _carries(environ: Path, mark: str) -> bool:
    try:
        return f"MARK={mark}".encode() in environ.read_bytes().split(b"\0") and int(environ.parent.name) != os.getpid()
    except OSError:
        return False


def test_nothing_is_announced_before_the_disk_has_it_though_the_gang_goes_on(tmp_path: Path, started: list[GangOrder]) -> None:
    order = GangOrder(tmp_path / "a")
    started.append(order)
    order.start()
    until(lambda: order.generations(0) and order.generations(1))
    before = order.pids()
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(str(order.folder / "s"))
        agent.setblocking(False)
        said = bytearray()
        until(lambda: b"agents" in heard(agent, said))
        with stalled(order, "ranks.json"):
            os.kill(before[0], signal.SIGKILL)
            until(lambda: len(order.generations(0)) == len(order.generations(1)) == 2)
            assert order.pids() == before
            assert b"ranks" not in heard(agent, said)
        until(lambda: b"ranks" in heard(agent, said))
        assert order.pids() != before
    assert order.end() == [0, 0], order.said()


def test_a_writer_that_is_killed_is_done_without(tmp_path: Path, started: list[GangOrder]) -> None:
    """While it has nothing to write."""
    order = GangOrder(tmp_path / "a", FAULT="sigkill")
    started.append(order)
    order.start()
    before = order.pids()
    os.kill(writer_of(order), signal.SIGKILL)
    assert order.end() == [0, 0], order.said()
    assert order.pids() != before
    assert "generation 2 starts" in order.said()


def test_what_a_writer_was_writing_when_it_was_killed_is_written_again(tmp_path: Path, started: list[GangOrder]) -> None:
    order = GangOrder(tmp_path / "a")
    started.append(order)
    order.start()
    until(lambda: order.generations(0) and order.generations(1))
    before, writer = order.pids(), writer_of(order)
    with stalled(order, "ranks.json"):
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(order.generations(0)) == len(order.generations(1)) == 2)
        until(lambda: waits_for_the_disk(writer))
        os.kill(writer, signal.SIGKILL)
        until(lambda: not alive(writer))
        assert order.pids() == before
    until(lambda: order.pids() != before)
    assert order.pids()[1:] == before[1:]
    assert order.end() == [0, 0], order.said()
    assert "generation 2 starts" in order.said()


def waits_for_the_disk(writer: int) -> bool:
    """It does so where it opens what is stalled."""
    return Path(f"/proc/{writer}/wchan").read_text() == "wait_for_partner"


def writer_of(order: GangOrder) -> int:
    """The process that writes for the shim."""
    assert order.process is not None
    shim = order.process.pid
    return until(lambda: next((pid for pid in children(shim) if Path(f"/proc/{pid}/comm").read_bytes().strip() == NAME), None))


def heard(agent: socket.socket, said: bytearray) -> bytearray:
    with contextlib.suppress(BlockingIOError):
        said += agent.recv(65_536)
    return said
