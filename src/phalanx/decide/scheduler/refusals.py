"""Why queues may not have what jobs ask for, kept from one decision to the next. After a small change nearly all jobs that a limit
refused are refused again, by the same limit with as much used of it: they hear the very same, without being looked at further.
"""

from typing import NamedTuple

from phalanx.core.policy import Policy
from phalanx.core.reasons import Reason
from phalanx.decide.scheduler.quotas.admission import Admission, Bar
from phalanx.decide.scheduler.where.ground import Seen

Asked = tuple[int, str, bool]
"""Number of a shape, the queue that asks for it, whether the job may be preempted."""


class Refused(NamedTuple):
    """kinds: types that the shape could ever run on. amount: in thousandths of devices. bars: what refuses it on each type; told,
    reasons: in which words. unsaved: types of which nothing is saved for others. reason: of all."""

    kinds: tuple[str, ...]
    amount: int
    bars: list[Bar | None]
    unsaved: tuple[str, ...]
    told: tuple[Admission, ...]
    reasons: tuple[Reason, ...]
    reason: Reason


class Refusals:
    """Of the last decision and, in `heard`, of this one. Good as long as the policy, what nodes have, and the numbers of shapes
    stay the same."""

    def __init__(self) -> None:
        self.heard: dict[Asked, Refused] = {}
        self._before: dict[Asked, Refused] = {}
        self._of: tuple[Policy, Seen] | None = None

    def begin(self, policy: Policy, seen: Seen) -> None:
        """A decision; what is not heard again in it is forgotten with its end. seen: another object when nodes have changed, or
        shapes are numbered anew."""
        same = self._of is not None and self._of[0] is policy and self._of[1] is seen
        self._before, self.heard, self._of = self.heard if same else {}, {}, (policy, seen)

    def of(self, asked: Asked) -> Refused | None:
        """What such a job heard last."""
        return self.heard.get(asked) or self._before.get(asked)
