"""The server's end of the scheduler process: asks for a plan and never raises for want of one."""

from typing import Final

import structlog

from phalanx.core import wire
from phalanx.core.errors import WorldError
from phalanx.decide.scheduler.plan import Plan
from phalanx.decide.scheduler.snapshot import Snapshot
from phalanx.operate.control.line_process import LineProcess
from phalanx.operate.control.scheduler_process import Answer

ANSWER_S_MAX: Final = 60.0
"""A decision that takes longer is taken for a hang: the process is ended and the tick goes on without a plan."""

NO_CHANGE: Final = Plan(())
log = structlog.get_logger(__name__)


async def decide(scheduler: LineProcess, snapshot: Snapshot) -> Plan:
    """The plan for `snapshot`. Without an answer, the plan that changes nothing and a line in the log: the tick goes on."""
    try:
        answer: Answer = wire.loads(Answer, await scheduler.ask(wire.dumps(Snapshot, snapshot)))
    except (WorldError, ValueError) as error:
        log.error("no_decision", error=str(error))
        return NO_CHANGE
    if answer.plan is None:
        log.error("no_decision", error=answer.error)
        return NO_CHANGE
    return answer.plan
