"""Ranks, agent, shim and control plane die by SIGKILL; what must survive does, what must not is gone."""

import hashlib
import json
import os
import signal
import subprocess
import time

from phalanx.core.interruptions import WITH_BOOT
from phalanx.core.messages import StopRanks
from phalanx.operate.agent import shim
from phalanx.operate.agent.sweeping import sweep
from phalanx.storage import workdir
from tests.operate.agent.agent_cell import DEADLINE_S, Cell, alive, outside, until

WAIT = "import signal; print('up', flush=True); signal.pause()"
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
print("up", flush=True)
while True:
    signal.pause()
"""
PARENT = """
import os, signal, subprocess, sys
inner = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True: signal.pause()"]
marked = subprocess.Popen(inner, start_new_session=True)
bare = subprocess.Popen(inner, start_new_session=True, env={})
print(marked.pid, bare.pid, flush=True)
signal.pause()
"""
COUNT = """
import os, time
rank = os.environ["RANK"]
number = 0
while not os.path.exists(os.environ["DONE"]):
    number += 1
    print(rank, number, flush=True)
    time.sleep(0.01)
"""


def ranks_up(cell: Cell, attempt: str = "demo-1.1", ranks: int = 2) -> list[int]:
    """Waits until every rank has printed; their pids."""
    until(lambda: all(cell.far.text("log", attempt, rank) for rank in range(ranks)))
    return [process.pid for process in cell.far.phase(attempt, "running").ranks]


def test_a_killed_rank_ends_the_others_durably_and_is_reported_at_once(cell: Cell) -> None:
    cell.far.start(cell.launch(WAIT, ranks=3))
    pids = ranks_up(cell, ranks=3)
    os.kill(pids[1], signal.SIGKILL)
    fell = cell.far.phase("demo-1.1", "stopping")
    assert (1, -9, True) in [(exited.rank, exited.code, exited.first) for exited in fell.exits]
    report = cell.far.phase("demo-1.1", "ended")
    assert [(exited.rank, exited.code, exited.first) for exited in report.exits] == [
        (0, -15, False),
        (1, -9, True),
        (2, -15, False),
    ]
    assert not any(alive(pid) for pid in pids)
    on_disk = [json.loads((cell.folder() / "exits" / f"rank-{rank}.json").read_bytes())["code"] for rank in range(3)]
    assert on_disk == [-15, -9, -15]
    assert report.lost == ""


def test_grandchildren_are_swept_marked_or_not(cell: Cell) -> None:
    cell.far.start(cell.launch(PARENT, ranks=1))
    [rank] = ranks_up(cell, ranks=1)
    grandchildren = [outside(int(pid), rank) for pid in cell.far.text("log", "demo-1.1", 0).split()]
    assert len(grandchildren) == 2
    assert all(alive(pid) for pid in grandchildren)
    os.kill(rank, signal.SIGKILL)
    cell.far.phase("demo-1.1", "ended")
    assert not any(alive(pid) for pid in grandchildren)


def test_stop_gives_grace_and_then_kills(cell: Cell) -> None:
    cell.far.start(cell.launch(STUBBORN, ranks=1))
    ranks_up(cell, ranks=1)
    asked_at = time.monotonic()
    cell.far.say(StopRanks(cell.launch("").attempt, 1, 300))
    cell.far.phase("demo-1.1", "stopping")
    report = cell.far.phase("demo-1.1", "ended")
    assert time.monotonic() - asked_at >= 0.3
    assert [(exited.code, exited.first) for exited in report.exits] == [(-9, False)]
    assert cell.far.text("log", "demo-1.1", 0) == "up\nheard\n"


def test_a_stop_outlives_the_agent_that_heard_it_and_the_shortest_grace_holds(cell: Cell) -> None:
    cell.far.start(cell.launch(STUBBORN, ranks=1))
    ranks_up(cell, ranks=1)
    attempt = cell.launch("").attempt
    cell.far.say(StopRanks(attempt, 1, 60_000))
    cell.far.phase("demo-1.1", "stopping")
    cell.agent.end(signal.SIGKILL)
    cell.agent.start()
    until(lambda: len(cell.far.hellos()) == 2)
    assert cell.far.hellos()[-1].attempts[0].phase == "stopping"
    cell.far.say(StopRanks(attempt, 1, 100))
    assert [exited.code for exited in cell.far.phase("demo-1.1", "ended").exits] == [-9]


def test_stop_of_an_unknown_attempt_is_answered_as_ended(cell: Cell) -> None:
    cell.far.say(StopRanks(cell.launch("", attempt="ghost-9.1").attempt, 1, 300))
    report = cell.far.phase("ghost-9.1", "ended")
    assert report.exits == ()


def test_ranks_never_notice_the_death_of_their_agent_and_the_next_one_adopts(cell: Cell) -> None:
    done = cell.home / "done"
    cell.far.start(cell.launch(COUNT, env={"DONE": str(done)}))
    pids = ranks_up(cell)
    cell.agent.end(signal.SIGKILL)
    log = cell.folder() / "rank-1.log"
    size = log.stat().st_size
    until(lambda: log.stat().st_size > size + 50)
    cell.agent.start()
    until(lambda: len(cell.far.hellos()) == 2)
    [adopted] = cell.far.hellos()[-1].attempts
    assert (adopted.phase, [process.pid for process in adopted.ranks]) == ("running", pids)
    done.touch()
    report = cell.far.phase("demo-1.1", "ended")
    assert [exited.code for exited in report.exits] == [0, 0]
    for rank in range(2):
        said = [line.split() for line in cell.far.text("log", "demo-1.1", rank).splitlines()]
        assert said == [[str(rank), str(number + 1)] for number in range(len(said))]


def test_ranks_that_end_while_no_agent_is_there_are_reported_by_the_next(cell: Cell) -> None:
    done = cell.home / "done"
    cell.far.start(cell.launch(COUNT, env={"DONE": str(done)}))
    ranks_up(cell)
    cell.agent.end(signal.SIGTERM)
    done.touch()
    until((cell.folder() / "ended.json").exists)
    ended_ms = json.loads((cell.folder() / "ended.json").read_bytes())["at_ms"]
    cell.agent.start()
    report = cell.far.phase("demo-1.1", "ended")
    assert [exited.code for exited in report.exits] == [0, 0]
    assert (report.ended_ms, report.interrupted) == (ended_ms, False)
    assert report.at_ms > ended_ms


def test_a_shim_that_died_while_no_agent_was_there_is_cleaned_up_by_the_next(cell: Cell) -> None:
    cell.far.start(cell.launch(WAIT))
    pids = ranks_up(cell)
    cell.agent.end(signal.SIGKILL)
    os.kill(cell.shim_pid(), signal.SIGKILL)
    cell.agent.start()
    until(lambda: len(cell.far.hellos()) == 2)
    assert [report.phase for report in cell.far.hellos()[1].attempts] != ["running"], "nothing runs there any more"
    assert cell.far.phase("demo-1.1", "ended").lost
    assert not any(alive(pid) for pid in pids)


def test_what_ran_before_the_machine_was_started_again_ended_with_its_boot(cell: Cell) -> None:
    cell.far.start(cell.launch(WAIT))
    ranks_up(cell)
    cell.agent.end(signal.SIGKILL)
    os.kill(cell.shim_pid(), signal.SIGKILL)
    claim = cell.folder() / "shim-pid.json"
    claim.write_text(json.dumps(json.loads(claim.read_bytes()) | {"boot": "an earlier one"}))
    cell.agent.start()
    report = cell.far.phase("demo-1.1", "ended")
    assert (report.lost, report.interrupted) == (WITH_BOOT, False)


def test_a_second_shim_of_an_attempt_leaves_at_once(cell: Cell) -> None:
    cell.far.start(cell.launch(WAIT))
    pids = ranks_up(cell)
    second = subprocess.run(shim.command(cell.folder()), timeout=DEADLINE_S)
    assert second.returncode == 0
    assert all(alive(pid) for pid in pids)
    assert cell.far.text("log", "demo-1.1", 0) == "up\n"


def test_sigterm_to_the_shim_stops_the_ranks_with_records(cell: Cell) -> None:
    cell.far.start(cell.launch(WAIT))
    ranks_up(cell)
    os.kill(cell.shim_pid(), signal.SIGTERM)
    report = cell.far.phase("demo-1.1", "ended")
    assert ([exited.code for exited in report.exits], report.lost) == ([-15, -15], "they were stopped with the platform")
    assert report.interrupted
    assert max(exited.at_ms for exited in report.exits) <= report.ended_ms <= report.at_ms


def test_the_sweep_of_one_home_leaves_anothers_attempt_of_the_same_name_alone(cell: Cell) -> None:
    cell.far.start(cell.launch(WAIT))
    pids = ranks_up(cell)
    assert sweep(["PHALANX_MARK=demo-1.1", "PHALANX_SOCKET=/another/platform/run/agent.sock"]) == set()
    assert all(alive(pid) for pid in pids)


def packed(cell: Cell) -> str:
    """Gives the far side a packed workdir that it does not hand out yet; its hash."""
    (cell.home / "project").mkdir()
    (cell.home / "project" / "hello.txt").write_text("hello")
    data = workdir.pack(cell.home / "project")
    sha256 = hashlib.sha256(data).hexdigest()
    cell.far.blobs[sha256] = data
    cell.far.blobs_away = True
    return sha256


def test_an_attempt_whose_start_was_interrupted_is_started_once_by_the_next_agent(cell: Cell) -> None:
    cell.far.start(cell.launch("print(open('hello.txt').read())", code=packed(cell), ranks=1))
    until(lambda: "code_not_fetched_yet" in cell.agent.log())
    assert cell.far.reports("demo-1.1")[-1].phase == "starting"
    cell.agent.end(signal.SIGKILL)
    cell.far.blobs_away = False
    cell.agent.start()
    assert [exited.code for exited in cell.far.phase("demo-1.1", "ended").exits] == [0]
    assert cell.far.text("log", "demo-1.1", 0) == "hello\n"


def test_a_stop_before_the_ranks_are_started_ends_the_attempt(cell: Cell) -> None:
    launch = cell.launch("print('ran')", code=packed(cell), ranks=1)
    cell.far.start(launch)
    until(lambda: "code_not_fetched_yet" in cell.agent.log())
    cell.far.say(StopRanks(launch.attempt, 1, 300))
    assert [exited.code for exited in cell.far.phase("demo-1.1", "ended").exits] == [-15]
    assert "stopped before its ranks were started" in cell.far.text("log", "demo-1.1", 0)
