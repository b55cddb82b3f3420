"""Long answers for which many readers ask at the same time, rendered once: a fleet of a thousand nodes is most of a megabyte.

What is committed shows at once, for the world's number belongs to what an answer is kept under. The rest of it (when a node was
last heard of, how long ticks take, how many rows wait for the tracker) may be as old as KEPT_MS.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fastapi import Response

from phalanx.operate.control.api.tags import tag_of_bytes

KEPT_MS: Final = 1_000
ANSWERS_MAX: Final = 16
"""Of different readers: those of one sight share theirs."""

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    body: "asyncio.Task[tuple[bytes, str]]"
    at_ms: int


class KeptAnswers:
    """Those of one server. Belongs to its loop; monotonic_ms tells the time."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()

    async def answer(self, key: Key, render: Callable[[], Awaitable[bytes]]) -> Response:
        """The JSON that `render` makes, with its tag. key: all that decides what it says and who may see it. Raises what `render`
        raises, which is asked again by the next reader."""
        now_ms = self._monotonic_ms()
        kept = self._kept.get(key)
        if kept is None or now_ms - kept.at_ms >= KEPT_MS or _failed(kept.body):
            kept = self._kept[key] = _Kept(asyncio.ensure_future(_tagged(render)), now_ms)
        self._kept.move_to_end(key)
        while len(self._kept) > ANSWERS_MAX:
            self._kept.popitem(last=False)
        body, tag = await asyncio.shield(kept.body)  # whoever asked first may hang up
        return Response(body, media_type="application/json", headers={"ETag": tag})


async def _tagged(render: Callable[[], Awaitable[bytes]]) -> tuple[bytes, str]:
    body = await render()
    return body, tag_of_bytes(body)


def _failed(body: "asyncio.Task[tuple[bytes, str]]") -> bool:
    return body.done() and (body.cancelled() or body.exception() is not None)
