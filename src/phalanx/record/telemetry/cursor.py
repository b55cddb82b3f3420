"""Where a reader of a job's series stands: how many measurements of each attempt it has seen, as opaque text."""

import re
from collections.abc import Mapping
from typing import Final

from phalanx.core.errors import UserError

LISTED_MAX: Final = 16
"""Attempts listed in a cursor; of older ones everything counts as seen, since their last records came before their end."""

_PART: Final = re.compile(r"([0-9]{1,9})_([0-9]{1,15})")

Seen = Mapping[int, int]
"""Attempt number -> measurements seen of it."""


def write(seen: Seen) -> str:
    """The cursor's text, '' when nothing was seen."""
    newest = sorted(number for number, count in seen.items() if count)[-LISTED_MAX:]
    return ".".join(f"{number}_{seen[number]}" for number in newest)


def read(text: str) -> dict[int, int]:
    """The reverse of `write`. Raises UserError for text that no page gave."""
    if not text:
        return {}
    parts = [_PART.fullmatch(part) for part in text.split(".")[: LISTED_MAX + 1]]
    found = {int(part[1]): int(part[2]) for part in parts if part}
    if len(found) != len(parts) or len(parts) > LISTED_MAX:
        raise UserError("after", text[:80], "give what `next` of the page before said, or nothing to start from the beginning")
    return found


def start_of(seen: Seen, number: int) -> int | None:
    """Arrival to go on from in attempt `number`; None when all of it counts as seen."""
    if len(seen) == LISTED_MAX and number < min(seen):
        return None
    return seen.get(number, 0)
