"""Times of the week in UTC: 'mon-fri', 'sat,sun' or 'all' as days, '20:00-06:00' as hours."""

import re
from typing import Final

DAY_MINUTES: Final = 24 * 60
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_HOURS: Final = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
_DAYS_FORM: Final = "write days such as 'mon-fri', 'sat,sun', 'wed' or 'all'"
_HOURS_FORM: Final = "write hours such as '20:00-06:00', or '00:00-24:00' for whole days"


def weekdays(text: str) -> frozenset[int]:
    """Days of the week, 0 is Monday; 'fri-mon' goes over the end of the week. Raises ValueError saying the accepted forms."""
    if text.strip() == "all":
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not set(ends) <= set(DAYS):
            raise ValueError(_DAYS_FORM)
        first, last = DAYS.index(ends[0]), DAYS.index(ends[-1])
        found.update((first + step) % 7 for step in range((last - first) % 7 + 1))
    return frozenset(found)


def minutes(text: str) -> tuple[int, int]:
    """Minutes of the day from when until when; until is at most 24 hours after from, and may lie in the next day. Raises ValueError
    saying the accepted forms."""
    matched = _HOURS.fullmatch(text.strip())
    if matched is None:
        raise ValueError(_HOURS_FORM)
    from_hour, from_minute, to_hour, to_minute = map(int, matched.groups())
    begins, ends = from_hour * 60 + from_minute, to_hour * 60 + to_minute
    if from_minute > 59 or to_minute > 59 or begins >= DAY_MINUTES or ends > DAY_MINUTES or begins == ends:
        raise ValueError(_HOURS_FORM)
    return begins, ends if ends > begins else ends + DAY_MINUTES
