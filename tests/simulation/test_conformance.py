"""The simulated agent and the real one, given the same commands and the same mishaps, say the same. This keeps the model honest."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from random import Random
from typing import Protocol

import pytest

from phalanx.core.ids import AttemptId
from phalanx.core.messages import (
    AttemptReport,
    Chunk,
    ChunkAck,
    Forget,
    Granted,
    Hello,
    Launch,
    Renew,
    Report,
    StartRanks,
    StopRanks,
    Welcome,
)
from phalanx.operate.sim.agent import SimAgent
from phalanx.operate.sim.faults import CALM, Faults
from phalanx.operate.sim.machine import Machine, Program, Witness
from phalanx.operate.sim.network import Line, LineEnd, Network
from phalanx.operate.sim.timeline import Timeline
from tests.operate.agent.agent_cell import PACE_MS, AgentProcess, Cell, FarSide, until

EPOCH = 5
GRACE_MS = 30_000
SHORT_GRACE_MS = 200
LEASE_MS = 2_500  # of the simulated one, whose machine never stalls
LONG_LEASE_MS = 20_000
RANK = """
import os, signal, sys, time
if os.environ["STUBBORN"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.005)
code = int(open(os.environ["GO"]).read())
while code and os.environ["RANK"] != "0":
    signal.pause()  # as a rank that waits for another one
sys.exit(code)
"""


class Side(Protocol):
    """An agent and what surrounds it. `reach` waits until the newest report is of that phase; `held` asks the newest Hello."""

    def start(self, epoch: int = EPOCH) -> None: ...
    def start_bound_to_lease(self) -> None: ...
    def grants_no_more(self) -> None: ...
    def shim_dies(self) -> None: ...
    def never_prepared(self) -> None: ...
    def stop(self, grace_ms: int = GRACE_MS, epoch: int = EPOCH) -> None: ...
    def forget(self) -> None: ...
    def rank_0_exits(self, code: int) -> None: ...
    def restart(self) -> None: ...
    def reach(self, phase: str) -> None: ...
    def reports(self) -> Sequence[AttemptReport]: ...
    def held(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Script:
    """What happens, and what both must say: phases in order, and of the last report how the ranks ended."""

    name: str
    play: Callable[[Side], None]
    phases: str
    exits: tuple[tuple[int, int, bool], ...] = ()
    stubborn: bool = False
    lost: bool = False
    interrupted: bool = False


STOPPED = ((0, -15, False), (1, -15, False))
KILLED = ((0, -9, False), (1, -9, False))
WELL = ((0, 0, False), (1, 0, False))


def exits_well(side: Side) -> None:
    side.start()
    side.reach("running")
    side.rank_0_exits(0)
    side.reach("ended")


def rank_fails(side: Side) -> None:
    side.start()
    side.reach("running")
    side.rank_0_exits(1)
    side.reach("ended")


def started_twice(side: Side) -> None:
    side.start()
    side.start()
    side.reach("running")
    side.start()
    side.rank_0_exits(0)
    side.reach("ended")
    side.start()


def stopped(side: Side) -> None:
    side.start()
    side.reach("running")
    side.stop()
    side.reach("ended")
    side.stop()


def stopped_before_start(side: Side) -> None:
    side.never_prepared()
    side.reach("starting")
    side.stop()
    side.reach("ended")


def stopped_ever_sooner(side: Side) -> None:
    side.start()
    side.reach("running")
    side.stop(GRACE_MS)
    side.reach("stopping")
    side.stop(SHORT_GRACE_MS)
    side.reach("ended")


def stop_of_unknown(side: Side) -> None:
    side.stop()
    side.reach("ended")


def forgotten_early(side: Side) -> None:
    side.start()
    side.reach("running")
    side.forget()
    side.restart()
    assert side.held()
    side.rank_0_exits(0)
    side.reach("ended")


def forgotten_after_end(side: Side) -> None:
    exits_well(side)
    side.forget()
    side.restart()
    assert not side.held()


def older_epoch(side: Side) -> None:
    side.start(EPOCH - 1)
    side.start()
    side.reach("running")
    side.stop(epoch=EPOCH - 1)
    side.rank_0_exits(0)
    side.reach("ended")


def restarted_while_running(side: Side) -> None:
    side.start()
    side.reach("running")
    side.restart()
    side.rank_0_exits(1)
    side.reach("ended")


def restarted_while_stopping(side: Side) -> None:
    side.start()
    side.reach("running")
    side.stop(GRACE_MS)
    side.reach("stopping")
    side.restart()
    side.stop(SHORT_GRACE_MS)
    side.reach("ended")


def restarted_after_end(side: Side) -> None:
    exits_well(side)
    side.restart()
    assert side.held()
    side.reach("ended")
    side.start()


def restarted_before_start(side: Side) -> None:
    side.never_prepared()
    side.reach("starting")
    side.restart()
    side.stop()
    side.reach("ended")


def lease_ends(side: Side) -> None:
    side.start_bound_to_lease()
    side.reach("running")
    side.grants_no_more()
    side.reach("ended")


def lease_ends_for_others(side: Side) -> None:
    side.start()
    side.reach("running")
    side.grants_no_more()
    side.restart()
    side.rank_0_exits(0)
    side.reach("ended")


def shim_dies(side: Side) -> None:
    side.start()
    side.reach("running")
    side.shim_dies()
    side.reach("ended")


WHOLE = "starting running stopping ended"
SCRIPTS = (
    Script("exits well", exits_well, WHOLE, WELL),
    Script("a rank fails", rank_fails, WHOLE, ((0, 1, True), (1, -15, False))),
    Script("started twice", started_twice, WHOLE, WELL),
    Script("stopped", stopped, WHOLE, STOPPED),
    Script("stopped before start", stopped_before_start, "starting stopping ended", STOPPED),
    Script("stopped ever sooner", stopped_ever_sooner, WHOLE, KILLED, stubborn=True),
    Script("stop of unknown", stop_of_unknown, "ended"),
    Script("forgotten early", forgotten_early, WHOLE, WELL),
    Script("forgotten after end", forgotten_after_end, WHOLE, WELL),
    Script("older epoch", older_epoch, WHOLE, WELL),
    Script("restarted while running", restarted_while_running, WHOLE, ((0, 1, True), (1, -15, False))),
    Script("restarted while stopping", restarted_while_stopping, WHOLE, KILLED, stubborn=True),
    Script("restarted after end", restarted_after_end, f"{WHOLE} stopping ended", WELL),
    Script("lease ends", lease_ends, WHOLE, STOPPED, lost=True, interrupted=True),
    Script("lease ends for others", lease_ends_for_others, WHOLE, WELL),
    Script("shim dies", shim_dies, WHOLE, lost=True),
    Script("restarted before start", restarted_before_start, "starting stopping ended", STOPPED),
)


def check(script: Script, side: Side) -> None:
    script.play(side)
    reports = side.reports()
    assert " ".join(phase for phase, _ in groupby(report.phase for report in reports)) == script.phases
    assert [(one.rank, one.code, one.first) for one in reports[-1].exits] == list(script.exits)
    assert (bool(reports[-1].lost), reports[-1].interrupted) == (script.lost, script.interrupted)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_simulated_agent_keeps_to_the_script(script: Script) -> None:
    check(script, SimulatedSide(script.stubborn))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_real_agent_keeps_to_the_script(script: Script, shared_cell: Cell) -> None:
    check(script, RealSide(shared_cell, script.stubborn))


@pytest.fixture(scope="module")
def shared_cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """One real agent for every script: each has an attempt of its own."""
    home = tmp_path_factory.mktemp("conformance")
    made = Cell(home, FarSide(home, epoch=EPOCH, lease_ms=LONG_LEASE_MS, welcome_ms=PACE_MS), AgentProcess(home))
    made.far.up()
    made.agent.start()
    yield made
    made.agent.end()
    made.far.down()
    assert "Traceback" not in made.agent.log(), made.agent.log()


_NUMBERS = count(1)


class RealSide:
    """The real agent as a process of its own, with real ranks."""

    def __init__(self, cell: Cell, stubborn: bool) -> None:
        self._cell = cell
        self._attempt = AttemptId(f"real-{next(_NUMBERS)}.1")
        self._go = cell.home / f"{self._attempt}.go"
        env = {"GO": str(self._go), "STUBBORN": "1" if stubborn else ""}
        self._launch = cell.launch(RANK, attempt=self._attempt, env=env)

    def start(self, epoch: int = EPOCH) -> None:
        self._cell.far.start(self._launch, epoch)

    def start_bound_to_lease(self) -> None:
        self._cell.far.grants(LONG_LEASE_MS)
        self._cell.far.start(replace(self._launch, on_partition="stop"), EPOCH)

    def grants_no_more(self) -> None:
        self._cell.far.grants(1_000)
        self._cell.far.granting = False

    def shim_dies(self) -> None:
        os.kill(self._cell.shim_pid(self._attempt), signal.SIGKILL)

    def never_prepared(self) -> None:
        self._cell.far.blobs_away = True
        self._cell.far.start(replace(self._launch, code="0" * 64), EPOCH)

    def stop(self, grace_ms: int = GRACE_MS, epoch: int = EPOCH) -> None:
        self._cell.far.say(StopRanks(self._attempt, epoch, grace_ms))

    def forget(self) -> None:
        self._cell.far.say(Forget(self._attempt, EPOCH))
        self._settle()

    def rank_0_exits(self, code: int) -> None:
        staged = self._go.with_suffix(".new")
        staged.write_text(str(code))
        staged.rename(self._go)

    def restart(self) -> None:
        """By SIGKILL, so that it has nothing but its disk."""
        before = len(self._cell.far.hellos())
        self._cell.agent.end(signal.SIGKILL)
        self._cell.agent.start()
        until(lambda: len(self._cell.far.hellos()) > before)

    def reach(self, phase: str) -> None:
        until(lambda: [report.phase for report in self._cell.far.reports(self._attempt)][-1:] == [phase])
        if phase == "running":
            until(lambda: all(self._cell.far.text("log", self._attempt, rank) for rank in range(2)))

    def reports(self) -> Sequence[AttemptReport]:
        self._settle()
        self._cell.far.blobs_away, self._cell.far.granting, self._cell.far.lease_ms = False, True, LONG_LEASE_MS
        return self._cell.far.reports(self._attempt)

    def held(self) -> bool:
        return any(report.attempt == self._attempt for report in self._cell.far.hellos()[-1].attempts)

    def _settle(self) -> None:
        """Commands are obeyed in order: once a later one is answered, the earlier ones were carried out."""
        other = AttemptId(f"settle-{next(_NUMBERS)}.1")
        self._cell.far.say(StopRanks(other, EPOCH, 0))
        self._cell.far.phase(other, "ended")


class SimulatedSide:
    """The simulated agent on a timeline of its own, with a control plane that says what the script wants."""

    def __init__(self, stubborn: bool) -> None:
        self._timeline = Timeline()
        self._heard: list[AttemptReport] = []
        self._hellos: list[Hello] = []
        self._network = Network(self._timeline, Faults(Random(1), CALM), slow_ms=0)
        program = Program(run_ms=None, stubborn=stubborn)
        self._machine = Machine("n1", 2, self._timeline, Random(1), lambda launch, rank: program, Witness())
        self._line: Line | None = None
        self._granting = True
        self._agent()

    def start(self, epoch: int = EPOCH) -> None:
        self._say(StartRanks(LAUNCH, epoch))

    def start_bound_to_lease(self) -> None:
        self._say(StartRanks(replace(LAUNCH, on_partition="stop"), EPOCH))

    def grants_no_more(self) -> None:
        self._granting = False

    def shim_dies(self) -> None:
        self._machine.shims[LAUNCH.attempt].die()

    def never_prepared(self) -> None:
        self._machine.code_away = True
        self._say(StartRanks(LAUNCH, EPOCH))

    def stop(self, grace_ms: int = GRACE_MS, epoch: int = EPOCH) -> None:
        self._say(StopRanks(LAUNCH.attempt, epoch, grace_ms))

    def forget(self) -> None:
        self._say(Forget(LAUNCH.attempt, EPOCH))

    def rank_0_exits(self, code: int) -> None:
        shim = self._machine.shims[LAUNCH.attempt]
        shim.rank_exits(0, code)
        self._timeline.after(200, lambda: None if code else shim.rank_exits(1, 0))

    def restart(self) -> None:
        before = len(self._hellos)
        assert self._machine.agent is not None
        self._machine.agent.die()
        self._agent()
        self._until(lambda: len(self._hellos) > before and self._machine.agent is not None and self._machine.agent.welcomed)

    def reach(self, phase: str) -> None:
        self._until(lambda: [report.phase for report in self._heard][-1:] == [phase])

    def reports(self) -> Sequence[AttemptReport]:
        self._pass(2_000)
        return self._heard

    def held(self) -> bool:
        return bool(self._hellos[-1].attempts)

    def _agent(self) -> None:
        SimAgent(self._machine, self._dial).start()
        self._until(lambda: self._machine.agent is not None and self._machine.agent.welcomed)

    def _dial(self, at_agent: LineEnd) -> Line:
        self._line = self._network.open(at_agent, LineEnd(self._hear, lambda line, why: None))
        return self._line

    def _hear(self, line: Line, message: object) -> None:
        match message:
            case Hello(attempts=attempts):
                self._hellos.append(message)
                self._heard += attempts
                line.down(Welcome(EPOCH, LEASE_MS, {}))
            case Renew(number=number) if self._granting:
                line.down(Granted(number, LEASE_MS))
            case Report(report=report):
                if report.attempt == LAUNCH.attempt:
                    self._heard.append(report)
            case Chunk():
                line.down(ChunkAck(message.stream, message.attempt, message.rank, message.offset + len(message.data)))

    def _say(self, message: object) -> None:
        assert self._line is not None
        self._line.down(message)
        self._pass(20)

    def _pass(self, ms: int) -> None:
        until_ms = self._timeline.now_ms + ms
        while self._timeline.step(until_ms):
            pass

    def _until(self, look: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if look():
                return
            self._pass(5)
        pytest.fail("what was waited for did not happen")


LAUNCH = Launch(
    attempt=AttemptId("demo-1.1"), argv=("python", "train.py"), python="", env={}, code="", folder="/jobs/demo-1",
    first_rank=0, world_size=2, node_rank=0, num_nodes=1, devices=(0, 1), cpus=0.0, master_address="127.0.0.1",
    master_port=29_500, hyperparameters={}, checkpoint_every=0, checkpoint_keep_last=2, restarts=0,
)  # fmt: skip
