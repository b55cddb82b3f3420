"""Who asks: the token of a request looked up, once, before anything else of it is looked at."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

import structlog
from fastapi import Depends
from starlette.requests import HTTPConnection

from phalanx.core.errors import Bug, Forbidden, StoreUnavailable
from phalanx.core.people import BUILT_IN, Person
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.auth import Caller, bearer, digest
from phalanx.operate.control.people.accounts import USED_AGAIN_MS
from phalanx.operate.control.people.directory import Directory
from phalanx.operate.control.people.notes import Note

UNKNOWN: Final = "?"
"""As the address of who has none, and as the name of who has not said it."""

_writing: Final[set["asyncio.Task[None]"]] = set()
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and from where. `known`: the person whose token it is; None for a node."""

    known: Person | None
    caller: Caller
    address: str

    @property
    def person(self) -> Person:
        """Raises Forbidden for a node."""
        if self.known is None:
            raise Forbidden("Authorization", "(the token of a node)", "use the token of a person: `phalanx token create`")
        return self.known

    @property
    def name(self) -> str:
        return self.known.user if self.known else f"node {self.caller.node or ''}".strip()

    @property
    def sight(self) -> tuple[object, ...]:
        """What decides what they are shown, for the tag of an answer: nobody hears 304 for what they saw with other roles."""
        return (self.person.everywhere, *sorted(self.person.roles.items()))

    def note(self, what: str, on: str, at_ms: int, detail: str = "") -> Note:
        """What is written down of a change. on: its name; '' is the job that comes of it. at_ms: Unix time."""
        token = self.known.token if self.known else ""
        return Note(at_ms=at_ms, who=self.name, token=token, what=what, target=on, address=self.address, detail=detail)


async def asker(connection: HTTPConnection) -> Asker:
    """Who sent the Authorization header. Raises Unauthorized, RateLimited, StoreUnavailable."""
    services: Services = connection.app.state.services
    sha256 = digest(bearer(connection.headers.get("authorization")))
    made = _kept(connection, await _found(services, sha256, address_of(connection)))
    if made.caller.role == "user":
        services.doors.pace(made.person.token, services.clock.monotonic_ms() / 1000)
        _note_use(services, await directory_of(services), sha256, services.clock.now_ms())
    return made


AskerHere = Annotated[Asker, Depends(asker)]
Again = Callable[[], Awaitable[Asker]]
"""Looks the same token up once more. Raises Unauthorized once it opens nothing any more, StoreUnavailable."""


async def again(connection: HTTPConnection) -> Again:
    """For an answer that goes on after the request: roles may change meanwhile, and a token may be revoked. Raises Unauthorized."""
    sha256 = digest(bearer(connection.headers.get("authorization")))
    return partial(_found, connection.app.state.services, sha256, address_of(connection))


AgainHere = Annotated[Again, Depends(again)]


async def _found(services: Services, sha256: str, address: str) -> Asker:
    """Whose token has that hash. Raises Unauthorized, StoreUnavailable."""
    caller = services.tokens.find(sha256)
    if caller is not None:
        return Asker(BUILT_IN if caller.role == "admin" else None, caller, address)
    directory = await directory_of(services)
    return Asker(directory.person(sha256, services.clock.now_ms()), Caller("user"), address)


async def directory_of(services: Services) -> Directory:
    """Everybody there is. On a thread only after a change: else it costs nothing. Raises StoreUnavailable."""
    known = services.accounts.known
    return await asyncio.to_thread(services.accounts.directory) if known is None else known


def address_of(connection: HTTPConnection) -> str:
    """From where the connection came: that of a proxy, where one stands before the server."""
    return connection.client.host if connection.client else UNKNOWN


def asked_by(connection: HTTPConnection) -> Asker | None:
    """Who was found to ask, if anybody was."""
    found = getattr(connection.state, "asker", None)
    return found if isinstance(found, Asker) else None


def _kept(connection: HTTPConnection, found: Asker) -> Asker:
    connection.state.asker = found
    return found


def _note_use(services: Services, directory: Directory, sha256: str, now_ms: int) -> None:
    """Now and then, beside the request: nobody waits for it, and a database that is away is no reason to refuse anybody."""
    if (token := directory.tokens.get(sha256)) is None:
        return  # revoked since
    used_ms = token.used_ms
    if (used_ms is None or now_ms - used_ms >= USED_AGAIN_MS) and services.doors.is_first_use(sha256, now_ms, USED_AGAIN_MS):
        spawn(_noted_use(services, sha256, now_ms))


async def _noted_use(services: Services, sha256: str, now_ms: int) -> None:
    await services.control.call(lambda controller: services.accounts.note_used(controller.epoch, {sha256: now_ms}))


def spawn(work: Coroutine[None, None, None]) -> None:
    """Does it beside the request. What the database refuses is told in the log alone."""
    task = asyncio.get_running_loop().create_task(_told(work))
    _writing.add(task)
    task.add_done_callback(_writing.discard)


async def _told(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except (StoreUnavailable, Bug, RuntimeError) as error:  # the last: the server is going down
        log.warning("not_written_beside", error=str(error))
