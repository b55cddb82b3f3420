"""The server's end of the scheduler process: asks for a plan and never raises for want of one."""

from typing import Final

import structlog

from phalanx.core import wire
from phalanx.core.errors import WorldError
from phalanx.decide.scheduler.plan import Plan
from phalanx.decide.scheduler.snapshot import Snapshot
from phalanx.operate.control.line_process import LineProcess
from phalanx.operate.control.questions import Asker, Question
from phalanx.operate.control.scheduler_process import Answer

ANSWER_S_MAX: Final = 60.0
"""A decision that takes longer is taken for a hang: the process is ended and the tick goes on without a plan."""

NO_CHANGE: Final = Plan(())
log = structlog.get_logger(__name__)


class Decider:
    """Asks the process about one snapshot after the other: a new process, or one that did not answer well, about all of it."""

    def __init__(self, scheduler: LineProcess) -> None:
        self._scheduler = scheduler
        self._asker = Asker()
        self._pid: int | None = None

    async def decide(self, snapshot: Snapshot) -> Plan:
        """The plan for `snapshot`. Without an answer, the plan that changes nothing and a line in the log: the tick goes on."""
        if self._pid is None or self._scheduler.pid != self._pid:
            self._asker.forget()
        question = self._asker.question(snapshot)
        try:
            answer: Answer = wire.loads(Answer, await self._scheduler.ask(wire.dumps(Question, question)))
        except (WorldError, ValueError) as error:
            return self._without(str(error))
        if answer.plan is None:
            return self._without(answer.error)
        self._pid = self._scheduler.pid
        return answer.plan

    def _without(self, why: str) -> Plan:
        log.error("no_decision", error=why)
        self._pid = None
        return NO_CHANGE
