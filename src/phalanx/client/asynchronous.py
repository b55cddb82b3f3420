"""The client of the control plane that waits on an event loop: the same methods, of the same programs, over another transport."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar

import httpx

from phalanx.client.http import RETRY_DELAYS_S, answer_of, for_line, problem, request_of, unanswered
from phalanx.client.methods import Methods
from phalanx.client.people import AsyncPeople
from phalanx.client.steps import Answer, Ask, Do, Give, Giving, Hear, Listen, Now, Program, Rest, Step
from phalanx.client.streamed import AsyncStream
from phalanx.core.errors import Bug, PhalanxError, ServerUnreachable

T = TypeVar("T")


class AsyncClient(Methods):
    """An asynchronous client of one control plane. Use it as an asynchronous context manager, or `aclose` it.

    Each method is that of `Client`, to be awaited; those that give many values are asynchronous iterators. It belongs to one event
    loop. `clock` (seconds) and `sleep` are injected; `relocate` gives (url, token) of a server that may have moved.
    """

    def __init__(
        self,
        url: str,
        token: str,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        relocate: Callable[[], tuple[str, str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        delays_s: Sequence[float] = RETRY_DELAYS_S,
    ) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.AsyncClient(transport=transport, **for_line(self.url, token))
        self._relocate = relocate
        self._clock = clock
        self._sleep = sleep
        self._delays_s = delays_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    @property
    def people(self) -> AsyncPeople:
        """Users, teams, tokens, the audit log, and who the caller is."""
        return AsyncPeople(self)

    async def carry_out(self, program: Program[T]) -> T:
        """What the program comes to, or raises."""
        result: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = program.send(result) if error is None else program.throw(error)
            except StopIteration as over:
                value: T = over.value
                return value
            result, error = await _tried(self._done(step))

    async def give(self, program: Giving[T]) -> AsyncIterator[T]:
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
                    result, error = await _tried(listening.done(step))
        finally:
            await listening.close()

    async def _listen(self, asked: Listen) -> AsyncStream:
        """A stream of events. Raises the error that its answer stands for."""
        return await self._repeated(lambda: AsyncStream.opened(self._http, self.url, asked))

    async def _done(self, step: Step) -> Any:
        """What is sent back for a step of a program. Raises core.errors."""
        match step:
            case Ask():
                return await self._asked(step)
            case Rest(seconds):
                return await self._sleep(seconds)
            case Now():
                return self._clock()
            case Do(work):
                return await asyncio.to_thread(work)
            case Listen() | Hear():
                raise Bug("a stream is for programs that give values")

    async def _asked(self, ask: Ask) -> Answer:
        return await (self._repeated(lambda: self._exchange(ask)) if ask.may_repeat else self._exchange(ask))

    async def _repeated(self, call: Callable[[], Awaitable[T]]) -> T:
        """As `Line.repeat`: raises the last ServerUnreachable, `lost` when any of them was."""
        lost = False
        for delay_s in self._delays_s:
            try:
                return await call()
            except ServerUnreachable as error:
                lost |= error.lost
            await self._sleep(delay_s)
            await self._look_again()
        try:
            return await call()
        except ServerUnreachable as error:
            error.lost |= lost
            raise

    async def _exchange(self, ask: Ask) -> Answer:
        try:
            response = await self._http.request(ask.method, f"/api/v1{ask.path}", **request_of(ask))
        except httpx.TransportError as error:
            raise unanswered(error, self.url, self._http.timeout.read) from error
        if response.is_success or (ask.missing_ok and response.status_code == 404):
            return answer_of(response, self.url)
        raise problem(response, self.url)

    async def _look_again(self) -> None:
        """As `Line` does."""
        if self._relocate is None:
            return
        try:
            url, token = await asyncio.to_thread(self._relocate)
        except PhalanxError:
            return
        self.url = url
        self._http.base_url = httpx.URL(url)
        self._http.headers["Authorization"] = f"Bearer {token}"


class _Listening:
    """The one stream that a program has open."""

    def __init__(self, listen: Callable[[Listen], Awaitable[AsyncStream]], other: Callable[[Step], Awaitable[Any]]) -> None:
        """other: what is done of a step that is of no stream."""
        self._listen, self._other = listen, other
        self._stream: AsyncStream | None = None

    async def done(self, step: Step) -> Any:
        match step:
            case Listen():
                await self.close()
                self._stream = await self._listen(step)
                return None
            case Hear():
                return await self._stream.hear() if self._stream is not None else None
            case _:
                return await self._other(step)

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()


async def _tried(act: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What is sent back, or what went wrong, which the program may have a way out of."""
    try:
        return await act, None
    except Exception as error:  # noqa: BLE001 (the program raises it again, or knows better)
        return None, error
