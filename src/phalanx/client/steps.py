"""What a method of the client does, as steps that somebody else carries out: requests, rests, looks at the clock. So each method is
written once, and waits as its client does: in its thread, or on an event loop."""

from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

from phalanx.core import wire
from phalanx.core.errors import WorldError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from phalanx.client.api import Client
    from phalanx.client.asynchronous import AsyncClient
    from phalanx.client.people import AsyncPeople, People

P = ParamSpec("P")
T = TypeVar("T")
PAGE_MAX = 1_000
"""Rows that a server gives at once."""

Params = Mapping[str, str | int | None]
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request; its answer is sent back. may_repeat: the same twice is the same once. missing_ok: a 404 is an answer too."""

    method: str
    path: str
    params: Params | None = None
    content: str | bytes | None = None
    headers: Mapping[str, str] | None = None
    may_repeat: bool = True
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What came: its body, the server's address, and the cursor of the next page ('' where there is none)."""

    ok: bool
    content: bytes
    url: str
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class Rest:
    """Waiting; nothing is sent back."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Now:
    """The clock, in seconds, is sent back."""


@dataclass(frozen=True, slots=True)
class Do:
    """Work on this machine that may take a while, such as writing a file."""

    work: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Listen:
    """Opens a stream of events, in place of the one before; its first answer is awaited. last: the id of the last event that was
    heard of it. Whoever gives the values closes it with them."""

    path: str
    params: Params | None = None
    last: str = ""


@dataclass(frozen=True, slots=True)
class Hear:
    """The next event of the stream that is open is sent back; None at its end."""


Step = Ask | Rest | Now | Do | Listen | Hear
Program = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class Give(Generic[T]):
    """One of the values of a method that gives many."""

    value: T


Giving = Generator[Step | Give[T], Any, None]


def read(kind: type[T], path: str, params: Params | None = None) -> Program[T]:
    """GET `path` as a `kind`."""
    value: T = decoded(kind, (yield Ask(method="GET", path=path, params=params)))
    return value


def read_all(kind: type[T], path: str, params: Params | None = None, limit: int | None = None) -> Program[tuple[T, ...]]:
    """The list at `path`, each row a `kind`: page after page to its end, or to `limit` rows. Of what the server names as the next
    page the cursor alone is taken: its address could be another's, who would be shown the token."""
    query: dict[str, str | int | None] = dict(params or {})
    found: list[T] = []
    while limit is None or len(found) < limit:
        asked = query if limit is None else {**query, "limit": min(limit - len(found), PAGE_MAX)}
        answer: Answer = yield Ask(method="GET", path=path, params=asked)
        page: tuple[T, ...] = decoded(tuple[kind, ...], answer)  # type: ignore[valid-type] # a type that was handed in
        found += page
        if not page or not answer.cursor:
            break
        query["cursor"] = answer.cursor
    return tuple(found[:limit])


def post(kind: type[T], path: str, body: str = "", may_repeat: bool = False) -> Program[T]:
    """POST `body`; the answer as a `kind`."""
    value: T = decoded(kind, (yield Ask(method="POST", path=path, content=body, headers=JSON, may_repeat=may_repeat)))
    return value


def decoded(kind: Any, answer: Answer) -> Any:
    """Raises ServerUnreachable for what is no `kind`."""
    from phalanx.client.http import unreadable

    try:
        return wire.loads(kind, answer.content)
    except ValueError as error:
        raise unreadable(answer.url, error) from error


def patiently(program: Callable[[], Program[T]], patience_s: float) -> Program[T]:
    """What `program`, which must be safe to repeat, comes to once the server is there; ServerUnreachable after `patience_s`."""
    started_s = yield Now()
    while True:
        try:
            return (yield from program())
        except WorldError:
            away_s = (yield Now()) - started_s
            if away_s >= patience_s:
                raise
            yield Rest(min(1.0, max(0.1, away_s / 4)))


class Method(Generic[P, T]):
    """A method of either client, or of its people, of one program."""

    def __init__(self, program: Callable[P, Program[T]]) -> None:
        self._program = program
        self.__doc__ = program.__doc__

    @overload
    def __get__(self, client: None, kind: type) -> Self: ...
    @overload
    def __get__(self, client: "Client | People", kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: "AsyncClient | AsyncPeople", kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, kind: type) -> Any:
        if client is None:
            return self
        program = self._program

        @wraps(program)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.carry_out(program(*args, **kwargs))

        return method


class Values(Generic[P, T]):
    """A method of either client that gives one value after the other."""

    def __init__(self, program: Callable[P, Giving[T]]) -> None:
        self._program = program
        self.__doc__ = program.__doc__

    @overload
    def __get__(self, client: None, kind: type) -> Self: ...
    @overload
    def __get__(self, client: "Client", kind: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: "AsyncClient", kind: type) -> Callable[P, "AsyncIterator[T]"]: ...
    def __get__(self, client: Any, kind: type) -> Any:
        if client is None:
            return self
        program = self._program

        @wraps(program)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.give(program(*args, **kwargs))

        return method
