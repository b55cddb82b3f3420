"""Traces that somebody asks for while the job runs. All ranks hear of a request before its first step, and begin with that one."""

from collections.abc import Callable
from functools import partial

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
        self._made = 0  # newest step
        self._taken: list[TraceRequest] = []  # in this generation
        requests = session.requests
        self._unwritten: dict[TraceRequest, Callable[[], str]] = requests.taken if requests is not None else {}  # of any
        self._missed: set[int] = requests.missed if requests is not None else set()

    def at(self, step: int) -> None:
        """Step `step` comes next."""
        if self._session.requests is None:
            return
        self._made = step - 1
        self.tell()
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
            self._miss(request, f"it was at step {self._made} when it heard of {request.steps_text()}")
        else:
            self._look_back(request)

    def is_asked(self, first: int, count: int) -> bool:
        """Whether one of these steps is traced for somebody."""
        return any(first <= taken.last and taken.first <= first + count - 1 for taken in self._taken)

    def drop(self) -> None:
        """After an error. What there is of a trace says nothing beside those of ranks that are no more."""
        for request in self._taken:
            if self._profile.drop(request.first):
                self._unwritten.pop(request, None)  # the next generation says what becomes of it

    def tell(self) -> None:
        """Says which traces came to nothing, also of generations before. To be called once more when no step comes."""
        for request, failure in [*self._unwritten.items()]:
            if request.last <= self._made and self._profile.has_summary(request.first, request.last):
                del self._unwritten[request]
            elif why := failure():
                del self._unwritten[request]
                self._miss(request, why)

    def _take(self, request: TraceRequest, step: int) -> None:
        try:
            self._profile.ask(request.first, request.count, step)
        except UserError as error:  # its script asked for the same
            self._miss(request, error.sentence())
        else:
            self._taken.append(request)
            self._unwritten[request] = partial(self._profile.failure, request.first)

    def _look_back(self, request: TraceRequest) -> None:
        """At one whose first step was made before this generation, by this process or by one that is no more."""
        if request in self._unwritten or request.number in self._missed:
            return
        if self._profile.has_summary(request.first, request.last):
            return
        if request.last > self._made:
            self._miss(request, f"the gang recovered, and goes on after step {self._made}")
        else:
            self._miss(request, "its process fell, or the gang recovered, before it was written")

    def _miss(self, request: TraceRequest, why: str) -> None:
        self._missed.add(request.number)
        self._session.no_trace(step=self._made, number=request.number, why=why)
