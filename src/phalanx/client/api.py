"""The client of the control plane that waits in its thread: core.views as answers, core.errors as refusals."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx

from phalanx.client.http import answer_of, open_line, request_of
from phalanx.client.methods import Methods
from phalanx.client.people import People
from phalanx.client.steps import Answer, Ask, Do, Give, Giving, Hear, Listen, Now, Program, Rest, Step
from phalanx.client.streamed import Stream
from phalanx.core.errors import Bug, PhalanxError, WorldError

if TYPE_CHECKING:
    from phalanx.client.channels import Channel
    from phalanx.client.forwarding import Forward
    from phalanx.core.channels import NotebookPlace, What

T = TypeVar("T")


class Client(Methods):
    """A synchronous client of one control plane. Use it as a context manager, or close it.

    Every method raises core.errors: a UserError with field, value and fix; ServerUnreachable or StoreUnavailable when the
    same call may be made again. Reading is repeated for about 1.5 s while a server starts again. `clock` (seconds) and `sleep`
    are injected; `relocate` gives (url, token) of a server that may have moved.
    """

    def __init__(
        self,
        url: str,
        token: str,
        transport: httpx.BaseTransport | None = None,
        *,
        relocate: Callable[[], tuple[str, str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._line = open_line(url.rstrip("/"), token, transport, relocate, sleep)
        self._clock = clock
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._line.http.close()

    @property
    def url(self) -> str:
        return self._line.url

    @property
    def people(self) -> People:
        """Users, teams, tokens, the audit log, and who the caller is."""
        return People(self)

    def channel(
        self, job: str, what: "What", *, rank: int = 0, argv: Sequence[str] = (), terminal: bool = False, port: int = 0
    ) -> "Channel":
        """A way into the running job: its terminal (`attach`), a command beside a rank (`exec`), or a connection to a port that it
        listens on (`forward`). Raises Conflict where there is no such way now."""
        from phalanx.client.channels import open_channel  # 40 ms, for those who need it

        return open_channel(self._line, job, what, rank=rank, argv=argv, terminal=terminal, port=port)

    def forward(self, job: str, port: int, local: int = 0, said: "Callable[[PhalanxError], None]" = lambda _: None) -> "Forward":
        """The job's port on this machine's loopback, until it is closed. `local`: 0 for any. `said` hears of connections that could
        not be made, in a thread of its own. Raises SetupError, and what `channel` does when nothing listens there now."""
        from phalanx.client.forwarding import Forward

        self.channel(job, "forward", port=port).close()
        return Forward(local, lambda: self.channel(job, "forward", port=port), said)

    def notebook(self, job: str) -> "NotebookPlace":
        """Where its server listens on its node, and what opens it. Raises Conflict while it does not listen yet."""
        from phalanx.client.channels import notebook_place

        return notebook_place(self._line, job)

    def hurry(self, timeout_s: float) -> None:
        """From now on each call is tried once, and given up after about `timeout_s`."""
        self._line.delays_s = ()
        self._line.http.timeout = timeout_s

    def patient(self, call: Callable[[], T], patience_s: float, away: Callable[[float], None] | None = None) -> T:
        """The answer of `call`, which must be safe to repeat, once the server is there; ServerUnreachable after `patience_s`.

        `away` hears now and then for how many seconds the server has been away.
        """
        started_s = self._clock()
        while True:
            try:
                return call()
            except WorldError:
                away_s = self._clock() - started_s
                if away_s >= patience_s:
                    raise
                if away is not None:
                    away(away_s)
                self._sleep(min(1.0, max(0.1, away_s / 4)))

    def now_s(self) -> float:
        """The injected clock, for those who wait with this client."""
        return self._clock()

    def rest(self, seconds: float) -> None:
        """The injected sleep, for those who wait with this client."""
        self._sleep(seconds)

    def carry_out(self, program: Program[T]) -> T:
        """What the program comes to, or raises."""
        result: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = program.send(result) if error is None else program.throw(error)
            except StopIteration as over:
                value: T = over.value
                return value
            result, error = _tried(self._done, step)

    def give(self, program: Giving[T]) -> Iterator[T]:
        """Its values, each when it is asked for."""
        result: Any = None
        error: BaseException | None = None
        listening = _Listening(self._listen, self._done)
        try:
            while True:
                try:
                    step = program.send(result) if error is None else program.throw(error)
                except StopIteration:
                    return
                if isinstance(step, Give):
                    result, error = None, None
                    yield step.value
                else:
                    result, error = _tried(listening.done, step)
        finally:
            listening.close()

    def _listen(self, asked: Listen) -> Stream:
        """A stream of events. Raises the error that its answer stands for."""
        return self._line.repeat(lambda: Stream(self._line.http, self.url, asked))

    def _done(self, step: Step) -> Any:
        """What is sent back for a step of a program. Raises core.errors."""
        match step:
            case Ask():
                return self._asked(step)
            case Rest(seconds):
                return self.rest(seconds)
            case Now():
                return self.now_s()
            case Do(work):
                return work()
            case Listen() | Hear():
                raise Bug("a stream is for programs that give values")

    def _asked(self, ask: Ask) -> Answer:
        def once() -> Answer:
            return answer_of(self._line.exchange(ask.method, ask.path, ask.missing_ok, **request_of(ask)), self.url)

        return self._line.repeat(once) if ask.may_repeat else once()


class _Listening:
    """The one stream that a program has open."""

    def __init__(self, listen: Callable[[Listen], Stream], other: Callable[[Step], Any]) -> None:
        """other: what is done of a step that is of no stream."""
        self._listen, self._other = listen, other
        self._stream: Stream | None = None

    def done(self, step: Step) -> Any:
        match step:
            case Listen():
                self.close()
                self._stream = self._listen(step)
                return None
            case Hear():
                return self._stream.hear() if self._stream is not None else None
            case _:
                return self._other(step)

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def _tried(done: Callable[[Step], Any], step: Step) -> tuple[Any, BaseException | None]:
    """What is sent back, or what went wrong, which the program may have a way out of."""
    try:
        return done(step), None
    except Exception as error:  # noqa: BLE001 (the program raises it again, or knows better)
        return None, error
