"""Long answers for which many readers ask at the same time, rendered and packed once: a fleet of a thousand nodes is most of a
megabyte, and a fortieth of that by gzip.

What is committed shows at once, for the world's number belongs to what an answer is kept under. The rest of it (when a node was
last heard of, how long ticks take, how many rows wait for the tracker) may be as old as KEPT_MS.
"""

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fastapi import Response

from phalanx.operate.control.api.tags import tag_of_bytes

KEPT_MS: Final = 1_000
ANSWERS_MAX: Final = 16
"""Of different readers: those of one sight share theirs."""

PACKED_FROM_BYTES: Final = 16 * 1024
_LEVEL: Final = 1
"""These answers repeat themselves: more effort brings little."""

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    body: "asyncio.Task[_Body]"
    at_ms: int


@dataclass(frozen=True, slots=True)
class _Body:
    """packed: by gzip; None of a short one."""

    plain: bytes
    packed: bytes | None
    tag: str


class KeptAnswers:
    """Those of one server. Belongs to its loop; monotonic_ms tells the time."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()

    async def answer(self, key: Key, render: Callable[[], Awaitable[bytes]], accepts: str = "") -> Response:
        """The JSON that `render` makes, with its tag. key: all that decides what it says and who may see it. accepts: the reader's
        Accept-Encoding. Raises what `render` raises, which is asked again by the next reader."""
        now_ms = self._monotonic_ms()
        kept = self._kept.get(key)
        if kept is None or now_ms - kept.at_ms >= KEPT_MS or _failed(kept.body):
            self._drop_old(now_ms)
            kept = self._kept[key] = _Kept(asyncio.ensure_future(_made(render)), now_ms)
        self._kept.move_to_end(key)
        while len(self._kept) > ANSWERS_MAX:
            self._kept.popitem(last=False)
        body = await asyncio.shield(kept.body)  # whoever asked first may hang up
        headers = {"ETag": body.tag, "Vary": "Accept-Encoding"}
        if body.packed is None or not _takes_gzip(accepts):
            return Response(body.plain, media_type="application/json", headers=headers)
        headers |= {"ETag": f'{body.tag[:-1]}-gzip"', "Content-Encoding": "gzip"}  # other bytes are another tag's (RFC 9110)
        return Response(body.packed, media_type="application/json", headers=headers)

    def _drop_old(self, now_ms: int) -> None:
        """Whoever waits for one of them holds it."""
        for key in [key for key, one in self._kept.items() if now_ms - one.at_ms >= KEPT_MS and one.body.done()]:
            del self._kept[key]


async def _made(render: Callable[[], Awaitable[bytes]]) -> _Body:
    plain = await render()
    long = len(plain) >= PACKED_FROM_BYTES
    packed = await asyncio.to_thread(gzip.compress, plain, _LEVEL, mtime=0) if long else None
    return _Body(plain, packed, tag_of_bytes(plain))


def _takes_gzip(accepts: str) -> bool:
    """Whether an Accept-Encoding names it, and does not rule it out."""
    for one in accepts.split(","):
        name, _, weight = one.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _failed(body: "asyncio.Task[_Body]") -> bool:
    return body.done() and (body.cancelled() or body.exception() is not None)
