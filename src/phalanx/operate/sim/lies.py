"""What a node says that lies: about its own attempts and those of others, its devices and its epochs. Never in other shapes than a
real agent's messages have, since those are refused at the door."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from phalanx.core.ids import AttemptId
from phalanx.core.messages import AttemptReport, Hello, Phase, RankExit, Report
from phalanx.operate.sim.faults import Faults
from phalanx.operate.sim.machine import Machine, Said

_PHASES: Final[Sequence[Phase]] = ("starting", "running", "stopping", "ended")

_LEAPS: Final = (1, 1_000, 2**20, 2**53, 2**63 - 1)


class Liar:
    """A machine's tongue. `attempts`: ids that exist somewhere."""

    def __init__(self, machine: Machine, faults: Faults, attempts: Callable[[], Sequence[AttemptId]]) -> None:
        self._machine = machine
        self._faults = faults
        self._attempts = attempts

    def say(self, message: Said) -> Sequence[Said]:
        if not self._faults.happens("lies"):
            return (message,)
        self._machine.witness.note(f"agent {self._machine.node}", "lies")
        match message:
            case Report(report):
                return (
                    (message, Report(self._twist(report))) if self._faults.random.random() < 0.5 else (Report(self._twist(report)),)
                )
            case Hello():
                return (self._hello(message),)
            case _:
                return (message, *self._invent())

    def _hello(self, hello: Hello) -> Hello:
        match self._faults.random.choice(("epoch", "omits", "doubled", "twists")):
            case "epoch":
                return replace(hello, epoch_seen=hello.epoch_seen + self._faults.random.choice(_LEAPS))
            case "omits":
                return replace(hello, attempts=hello.attempts[1:])
            case "doubled":
                return replace(hello, shape=replace(hello.shape, devices=hello.shape.devices * 2))
            case _:
                return replace(hello, attempts=tuple(self._twist(report) for report in hello.attempts))

    def _twist(self, report: AttemptReport) -> AttemptReport:
        match self._faults.random.choice(("ended", "failed", "lost", "other", "epoch", "devices")):
            case "ended":
                return replace(report, phase="ended", exits=tuple(RankExit(one.rank, 0, report.at_ms) for one in report.ranks))
            case "failed":
                return replace(report, exits=(RankExit(0, 1, report.at_ms, first=True), *report.exits))
            case "lost":
                return replace(report, phase="ended", lost="I say so", interrupted=True)
            case "other":
                return replace(report, attempt=self._somebody(report.attempt))
            case "epoch":
                return replace(report, epoch=report.epoch + 7)
            case _:
                return replace(report, devices=(0, 0, 0, 77))

    def _invent(self) -> tuple[Report, ...]:
        attempt = self._somebody(AttemptId("never-9.1"))
        phase = self._faults.random.choice(_PHASES)
        return (Report(AttemptReport(attempt, 1, phase, (), (), self._machine.clock.now_ms())),)

    def _somebody(self, instead: AttemptId) -> AttemptId:
        known = self._attempts()
        return self._faults.random.choice(known) if known else instead
