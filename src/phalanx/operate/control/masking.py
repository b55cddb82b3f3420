"""Strikes the values of a job's secrets out of what its ranks wrote, page by page. Pure: bytes in, bytes out.

Every page is masked by itself, so a look around it decides: a value that begins on one page and ends on the next is struck out of
both, and shows as one MASK where it begins.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

MASK: Final = b"***"
MASKED_BYTES_MIN: Final = 8
"""Shorter values stand in innocent text too, and masks there would say what they are."""

Read = Callable[[int, int], bytes]
"""(offset, limit) to the bytes of the log that are there: fewer than `limit` only at its end."""


@dataclass(frozen=True, slots=True)
class Masked:
    """A page: what to show, and how many bytes of the log it stands for."""

    shown: bytes
    taken: int


def page(read: Read, offset: int, limit: int, values: Collection[bytes], over: bool) -> Masked:
    """The page of at most `limit` bytes from `offset` on. `over`: nothing will follow what is there.

    What could be the beginning of a value at the end of a log that grows is left for the next page. At the end of one that is
    over it is struck out when MASKED_BYTES_MIN of it are there.
    """
    wanted = [value for value in set(values) if len(value) >= MASKED_BYTES_MIN]
    longest = max(map(len, wanted), default=0)
    start = max(0, offset - longest)
    span = offset - start + limit + longest
    window = read(start, span)
    hidden = _hidden(window, wanted)
    end = min(len(window), offset - start + limit)
    if len(window) < span and (begun := _begun(window, wanted)) is not None:
        if not over:
            end = min(end, max(begun, offset - start))
        elif len(window) - begun >= MASKED_BYTES_MIN:
            hidden[begun:] = b"\1" * (len(window) - begun)
    return _struck(window, hidden, offset - start, max(end, offset - start))


def _hidden(window: bytes, values: Collection[bytes]) -> bytearray:
    """1 for every byte that is part of a value, overlapping ones included."""
    hidden = bytearray(len(window))
    for value in values:
        at, done = window.find(value), 0
        while at >= 0:
            begin, period = max(at, done), at + len(value) - done
            done = at + len(value)
            if period < len(value):  # it overlaps the one before, and may go on so: to look at each would take minutes a page
                while window.startswith(value[-period:], done):
                    done += period
            hidden[begin:done] = b"\1" * (done - begin)
            at = window.find(value, done - len(value) + 1)
    return hidden


def _begun(window: bytes, values: Collection[bytes]) -> int | None:
    """Where the longest end of `window` begins that is the beginning of a value, and not all of it."""
    found = [_begun_one(window, value) for value in values]
    return min((at for at in found if at is not None), default=None)


def _begun_one(window: bytes, value: bytes) -> int | None:
    for at in range(max(0, len(window) - len(value) + 1), len(window)):
        if window[at] == value[0] and value.startswith(window[at:]):
            return at
    return None


def _struck(window: bytes, hidden: bytearray, first: int, end: int) -> Masked:
    """The bytes from `first` to `end`, each hidden run as one MASK, on the page where it begins."""
    shown, at = bytearray(), first
    while at < end:
        inside = bool(hidden[at])
        turn = hidden.find(0 if inside else 1, at, end)
        stop = end if turn < 0 else turn
        if not inside:
            shown += window[at:stop]
        elif at > first or first == 0 or not hidden[first - 1]:
            shown += MASK
        at = stop
    return Masked(bytes(shown), end - first)
