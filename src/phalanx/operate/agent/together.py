"""Running several coroutines as one, where a cancellation is never lost.

asyncio.TaskGroup is not used here: before Python 3.13 it forgets that it was cancelled when a child fails in the same moment.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, ParamSpec, TypeVar

from phalanx.core.errors import Bug

REMIND_S: Final = 1.0
P = ParamSpec("P")
T = TypeVar("T")


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs all parts until one ends, raises, or this is cancelled; then the others are cancelled. Raises what the first raised."""
    running = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()
    finally:
        await cancelled(running)


async def cancelled(running: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels all and waits until they are done, reminding those that overlook it. What they raise meanwhile is dropped."""
    running = list(running)
    while pending := [part for part in running if not part.done()]:
        for part in pending:
            part.cancel()
        await asyncio.wait(pending, timeout=REMIND_S)
    for part in running:
        if not part.cancelled():
            part.exception()  # looked at, so that asyncio does not report it as forgotten


async def to_its_end(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """In a thread, which no cancellation ends: whoever is cancelled meanwhile, be it again and again, still waits for it, since
    what it works on belongs to others too. Raises what it raised, unless this was cancelled."""
    thread = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    told: asyncio.CancelledError | None = None
    while not thread.done():
        try:
            await asyncio.wait({thread})
        except asyncio.CancelledError as cancel:
            told = cancel
    if told is not None:
        thread.exception()  # looked at, as above
        raise told
    return thread.result()


async def until_asked(running: Coroutine[Any, Any, None], asked: asyncio.Event) -> None:
    """Runs it until `asked`. Raises what it raises before, and Bug when it ends before in any other way."""
    task = asyncio.create_task(running)
    waiting = asyncio.create_task(_wait(asked))
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    ended_itself = task.done()
    await cancelled([task, waiting])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    if ended_itself:
        raise Bug("the agent's main task ended though nobody asked it to")


async def _wait(asked: asyncio.Event) -> None:
    await asked.wait()
