"""Threads for what waits for the blob store, which may be a slow network away: logs, records and answers must not wait for it."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

NUM_THREADS: Final = 8
NUM_LARGE: Final = 2
"""Blobs of many MiB on their way to the store at once: each has up to objects.PARTS_AT_ONCE parts in memory, and takes long."""
NUM_OF_ONE: Final = 16
"""Small blobs of one answer, of all answers together. Not the threads above: what waits for these holds one of them."""

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
_threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="blobs")
_large = ThreadPoolExecutor(NUM_LARGE, thread_name_prefix="large-blobs")

_of_one = ThreadPoolExecutor(NUM_OF_ONE, thread_name_prefix="small-blobs")


def for_each_blob(act: Callable[[A], T], of: Iterable[A]) -> list[T]:
    """What `act` returns of each, in their order, or the first that it raises. For a thread of these, which waits: a store that is
    a network away takes as long for one as for many at once."""
    return list(_of_one.map(act, of))


async def on_blob_thread(act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What `act` returns or raises."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(act, *arguments, **named))


async def on_large_blob_thread(act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """As `on_blob_thread`, for what holds memory or a thread for long: others wait for it, questions do not."""
    return await asyncio.get_running_loop().run_in_executor(_large, partial(act, *arguments, **named))
