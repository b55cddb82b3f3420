"""Traces that somebody asks for while the job runs. All ranks hear of a request before its first step, and begin with that one."""

from phalanx.core.errors import UserError
from phalanx.core.trace_request import TraceRequest
from phalanx.job.sdk.session import Session
from phalanx.job.train.traces.profile import Profile


class Requested:
    """Of one rank, in one generation of its gang. Nothing of it is training's: a rank that cannot trace says so and goes on."""

    def __init__(self, session: Session, rank: int, profile: Profile) -> None:
        self._session, self._rank, self._profile = session, rank, profile
        self._has_looked = False
        self._dealt = 0  # number of the newest request that needs no second look
        self._taken: TraceRequest | None = None

    def at(self, step: int) -> None:
        """Step `step` comes next."""
        if self._session.requests is None:
            return
        self._tell_failure(step)
        request = self._session.requests.traces()
        is_first_look, self._has_looked = not self._has_looked, True
        if request is None or request.number <= self._dealt:
            return
        self._dealt = request.number
        if not request.is_of(self._rank):
            return
        if request.first >= step:
            self._take(request, step)
        elif not is_first_look:
            self._miss(request, step, f"it was at step {step - 1} when it heard of {request.steps_text()}")
        elif request.last >= step:  # else they were made before: all that a process knows which has just taken the rank
            self._miss(request, step, f"the gang recovered, and goes on after step {step - 1}")

    def is_asked(self, first: int, count: int) -> bool:
        """Whether one of these steps is traced for somebody."""
        taken = self._taken
        return taken is not None and first <= taken.last and taken.first <= first + count - 1

    def drop(self) -> None:
        """After an error. What there is of a trace says nothing beside those of ranks that are no more."""
        if self._taken is not None:
            self._profile.drop(self._taken.first)

    def _take(self, request: TraceRequest, step: int) -> None:
        try:
            self._profile.ask(request.first, request.count, step)
        except UserError as error:  # its script asked for the same
            self._miss(request, step, error.sentence())
        else:
            self._taken = request

    def _tell_failure(self, step: int) -> None:
        if self._taken is not None and (why := self._profile.failure(self._taken.first)):
            self._miss(self._taken, step, why)
            self._taken = None

    def _miss(self, request: TraceRequest, step: int, why: str) -> None:
        self._session.no_trace(step=step - 1, number=request.number, why=why)
