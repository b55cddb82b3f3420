"""Faults on request at a real agent: the plan reaches the disk and is reported; what is the agent's to do, it does once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from phalanx.core.chaos import OF_AGENT, PLAN, Asked, Plan, met_name, planned
from phalanx.core.ids import AttemptId
from phalanx.core.messages import Launch, PlanFaults, RequestTraces, StopRanks
from phalanx.core.trace_request import TRACES, UNASKABLE, TraceRequest
from phalanx.job.sdk.chaos import Chaos
from phalanx.job.sdk.requests import Requests
from phalanx.operate.agent.attempts import Accepted, AttemptFolder
from phalanx.operate.agent.faults import NodeFaults
from phalanx.operate.agent.sockets import agent_socket, socket_folder
from tests.operate.agent.agent_cell import DEADLINE_S, Cell, alive, until

ATTEMPT = AttemptId("demo-1.1")
WAIT = "import os, time\nprint('here', os.environ.get('PHALANX_CHAOS', '-'), flush=True)\ntime.sleep(600)"


def agent_pid(cell: Cell) -> int:
    return int(json.loads((cell.home / "run" / "agent.json").read_bytes())["pid"])


def running(cell: Cell) -> tuple[int, ...]:
    cell.far.start(cell.launch(WAIT, chaos=True))
    return tuple(rank.pid for rank in cell.far.phase(ATTEMPT, "running").ranks)


def ask(cell: Cell, asked: Asked, number: int) -> None:
    fault = planned(asked, number)
    cell.far.say(PlanFaults(ATTEMPT, cell.far.epoch, (fault,), number))
    until(lambda: any(report.faults == number for report in cell.far.reports(ATTEMPT)))


def test_a_plan_is_on_the_disk_before_it_is_reported_and_an_older_one_changes_nothing(cell: Cell) -> None:
    running(cell)
    assert str(cell.folder() / "chaos") in until(lambda: cell.far.text("log", ATTEMPT, 0))
    ask(cell, Asked(fault="kill-rank", step=9), 2)
    before = len(cell.far.reports(ATTEMPT))
    cell.far.say(PlanFaults(ATTEMPT, cell.far.epoch, (), 1))
    until(lambda: len(cell.far.reports(ATTEMPT)) > before)
    assert cell.far.reports(ATTEMPT)[-1].faults == 2
    folder = AttemptFolder(cell.folder(), None)  # type: ignore[arg-type] # its plan alone is read
    assert folder.plan() == Plan((planned(Asked(fault="kill-rank", step=9), 2),), 2)
    request_traces(cell, 2)
    until(lambda: any(report.traces == 2 for report in cell.far.reports(ATTEMPT)))
    request_traces(cell, 1)
    request_traces(cell, 3)
    until(lambda: any(report.traces == 3 for report in cell.far.reports(ATTEMPT)))
    said = [report.traces for report in cell.far.reports(ATTEMPT)]
    assert 1 not in said[said.index(2) :], "an older request changes nothing either"
    asked = Requests(cell.folder() / "requests").traces()
    assert asked is not None and (asked.number, asked.first) == (3, 40)
    cell.far.say(StopRanks(ATTEMPT, cell.far.epoch, 0))
    cell.far.phase(ATTEMPT, "ended")


def request_traces(cell: Cell, number: int) -> None:
    cell.far.say(RequestTraces(ATTEMPT, cell.far.epoch, TraceRequest(number=number, first=40, count=2)))


def test_the_agent_kills_itself_once_and_its_ranks_do_not_notice(cell: Cell) -> None:
    ranks, agent = running(cell), cell.agent.pid
    ask(cell, Asked(fault="kill-agent", rank=1), 1)
    (cell.folder() / "chaos" / met_name(1, 1)).write_text("{}")
    assert cell.agent.process is not None and cell.agent.process.wait(DEADLINE_S) == -signal.SIGKILL
    until(lambda: agent_pid(cell) != agent and len(cell.far.hellos()) == 2)
    successor = agent_pid(cell)
    assert all(map(alive, ranks)) and cell.far.hellos()[-1].attempts[0].phase == "running"
    cell.far.say(PlanFaults(ATTEMPT, cell.far.epoch, (planned(Asked(fault="kill-agent", rank=1), 1),), 2))
    until(lambda: any(report.faults == 2 for report in cell.far.reports(ATTEMPT)))
    cell.far.say(StopRanks(ATTEMPT, cell.far.epoch, 0))
    cell.far.phase(ATTEMPT, "ended")
    assert alive(successor), "it was done before"
    end(successor)


def test_a_node_dies_with_its_ranks_and_says_so_when_it_is_back(cell: Cell) -> None:
    ranks, agent = running(cell), cell.agent.pid
    shim = cell.shim_pid()
    ask(cell, Asked(fault="kill-node"), 1)
    (cell.folder() / "chaos" / met_name(1, 0)).write_text("{}")
    assert cell.agent.process is not None and cell.agent.process.wait(DEADLINE_S) == -signal.SIGKILL
    until(lambda: agent_pid(cell) != agent)
    assert not any(map(alive, (*ranks, shim)))
    assert "died without exit records" in cell.far.phase(ATTEMPT, "ended").lost
    folder = socket_folder(cell.home)
    until(lambda: [path.name for path in folder.iterdir() if path.is_socket()] == [agent_socket(folder).name])
    end(agent_pid(cell))


def a_folder(tmp_path: Path) -> AttemptFolder:
    order = Launch(
        ATTEMPT, ("x",), "", {}, "", str(tmp_path), 0, 1, 0, 1, (0,), 0.0, "127.0.0.1", 20_002, {}, 1, 1, 0, chaos=True
    )  # fmt: skip
    made = AttemptFolder(tmp_path / ATTEMPT, Accepted(order, 3))
    made.chaos.mkdir(parents=True)
    return made


def test_what_a_rank_came_to_too_late_does_not_befall_the_agent(tmp_path: Path) -> None:
    folder, acts = a_folder(tmp_path), list[str]()

    def act() -> NoReturn:
        acts.append("it kills itself")
        raise SystemExit

    folder.plan_faults((planned(Asked(fault="kill-agent", step=5), 1), planned(Asked(fault="kill-node", step=6), 2)), 2)
    assert [late for _, late in Chaos(folder.chaos).claimed(0, 9, OF_AGENT)] == [True, True]
    faults = NodeFaults(tmp_path / "agent.sock", act)
    faults.planned(folder)
    faults.look()
    assert acts == []


def test_a_plan_that_is_none_is_as_no_plan_and_told_once(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    (folder.chaos / PLAN).write_text("{}")
    with capture_logs() as said:
        assert [folder.read().faults for _ in range(2)] == [0, 0]
    assert [line["event"] for line in said] == ["plan_of_faults_unreadable"]
    folder.plan_faults((planned(Asked(fault="kill-rank"), 1),), 1)
    assert folder.read().faults == 1


def test_ranks_of_an_older_agent_are_asked_for_no_traces_and_what_a_rank_spoiled_is_made_good(tmp_path: Path) -> None:
    folder, asked = a_folder(tmp_path), TraceRequest(number=1, first=40, count=2)
    folder.request_traces(asked)
    assert folder.read().traces == UNASKABLE and not folder.requests.exists()
    folder.requests.mkdir()
    assert folder.read().traces == 0
    (folder.requests / TRACES).write_text("[]")
    with capture_logs() as said:
        assert folder.read().traces == 0
    assert [line["event"] for line in said] == ["request_for_traces_unreadable"]
    assert Requests(folder.requests).traces() is None, "nor does a rank stumble over it"
    folder.request_traces(asked)
    assert folder.read().traces == 1 and Requests(folder.requests).traces() == asked


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_full_folder(path: Path) -> None:
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "file").touch()


def an_endless_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_huge_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize("spoil", [a_pipe, a_full_folder, an_endless_link, a_huge_file])
def test_nothing_that_a_rank_puts_in_their_place_holds_the_agent_up(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder, asked = a_folder(tmp_path), TraceRequest(number=1, first=40, count=2)
    folder.requests.mkdir()
    for path in (folder.requests / TRACES, folder.chaos / PLAN):
        spoil(path)
    assert (folder.read().traces, folder.read().faults) == (0, 0)
    folder.request_traces(asked)
    folder.plan_faults((planned(Asked(fault="kill-rank"), 1),), 1)
    assert (folder.read().traces, folder.read().faults) == (1, 1)
    assert Requests(folder.requests).traces() == asked


def test_a_folder_that_ranks_took_away_is_told_of_once_and_the_attempt_goes_on(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    folder.chaos.rmdir()
    folder.chaos.touch()
    with capture_logs() as said:
        for _ in range(2):
            folder.plan_faults((planned(Asked(fault="kill-rank"), 1),), 1)
    assert [line["event"] for line in said] == ["plan_of_faults_unreadable", "plan_of_faults_unwritable"]
    assert folder.read().faults == 0


def test_a_mark_that_is_a_pipe_is_not_waited_at(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    folder.plan_faults((planned(Asked(fault="kill-agent", rank=1, step=5), 1),), 1)
    os.mkfifo(folder.chaos / met_name(1, 1))
    faults = NodeFaults(tmp_path / "agent.sock")
    faults.planned(folder)
    (folder.chaos / "done-1").touch()  # it has befallen the agent before this one
    with capture_logs() as said:
        faults.look()
    assert [line["event"] for line in said] == ["fault_not_carried_out"]


def test_an_agent_comes_back_though_it_was_started_by_a_bare_name_and_by_init(tmp_path: Path) -> None:
    program = "import os, signal, sys; from phalanx.operate.agent import faults; print(faults._command()[0], flush=True);"
    program += "os.kill = lambda pid, number: None; faults._kill_self()"  # as the kernel does for the first process of a namespace
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([Path(sys.executable).name, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert Path(done.stdout.strip()).is_absolute() and done.returncode == 137, done.stderr


def end(pid: int) -> None:
    """Of a successor, which is nobody's child here."""
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
