"""Durations, sizes and the ledger's unit, read from and shown to people.

The ledger counts in milli-devices x milliseconds: Python integers, since 100,000 GPUs make 3e18 of them a year.
"""

import math
import re
from typing import Final

MILLI: Final = 1000
"""Milli-devices in a whole device."""

_DURATION_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_BYTES: Final = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_NUMBER_UNIT: Final = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*)\s*")


def duration_ms(text: str) -> int:
    """Milliseconds of '90s', '2h', '1.5d'. Raises ValueError naming the accepted units."""
    return _scaled(text, _DURATION_MS, "a duration such as '90s', '30m', '2h' or '1d'")


def utc_ms(text: str) -> int:
    """Unix milliseconds of '2026-12-01T09:00Z'. Raises ValueError saying the accepted form."""
    from datetime import UTC, datetime  # 2 ms, which most commands can do without

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("write a UTC time such as '2026-12-01T09:00Z'")
    return round(moment.astimezone(UTC).timestamp() * 1000)


def moment_ms(text: str, from_ms: int) -> int:
    """Unix milliseconds of a UTC time, or of a duration after `from_ms`. Raises ValueError saying the accepted forms."""
    try:
        return from_ms + duration_ms(text)
    except ValueError:
        pass
    try:
        return utc_ms(text)
    except ValueError:
        raise ValueError("write a UTC time such as '2026-12-01T09:00Z', or a duration such as '12h'") from None


def size_bytes(text: str) -> int:
    """Bytes of '512MiB', '80GB', '1024'. Raises ValueError naming the accepted units."""
    return _scaled(text, _SIZE_BYTES, "a size such as '512MiB', '16GiB' or '80GB'")


def _scaled(text: str, units: dict[str, int], wanted: str) -> int:
    matched = _NUMBER_UNIT.fullmatch(text)
    if matched is None or matched[2] not in units:
        known = f"; units are {', '.join(filter(None, units))}" if matched and matched[2] else ""
        raise ValueError(f"write {wanted}{known}")
    return round(float(matched[1]) * units[matched[2]])


def show_duration(ms: int) -> str:
    """'1h 02m', '3m 20s', '4.2s': short enough for a table."""
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours == 0:
        return f"{minute}m {second:02d}s"
    days, hour = divmod(hours, 24)
    return f"{hours}h {minute:02d}m" if days == 0 else f"{days}d {hour:02d}h"


def write_duration(ms: int) -> str:
    """'1439m', '4h', '30d', '1500ms': as people write one, so that `duration_ms` reads the same from it, up to 10**15."""
    days, rest = divmod(ms, _DURATION_MS["d"])
    if rest == 0 and days > 1:
        return f"{days}d"
    unit = next(unit for unit in ("h", "m", "s", "ms") if ms % _DURATION_MS[unit] == 0)
    return f"{ms // _DURATION_MS[unit]}{unit}"


def count_of(count: int, thing: str) -> str:
    """'1 job', '1,200 jobs'."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def show_amount(value: float) -> str:
    """'0.0166', '12.35', '4999.9': four significant digits and at least one decimal, without zeros at the end."""
    decimals = 1 if abs(value) >= 1000 or value == 0 else min(9, 3 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def utc_day(ms: int) -> str:
    """'2026-11-28' of Unix milliseconds."""
    from datetime import UTC, datetime  # 2 ms, which most commands can do without

    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d")


def utc_minute(ms: int) -> str:
    """'2026-11-28 09:00 UTC' of Unix milliseconds."""
    from datetime import UTC, datetime  # 2 ms, which most commands can do without

    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def utc_second(ms: int) -> str:
    """'2026-11-28 09:00:59 UTC' of Unix milliseconds, upwards: from then on it has been."""
    from datetime import UTC, datetime  # 2 ms, which most commands can do without

    return datetime.fromtimestamp(-(-ms // 1000), tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def show_size(num_bytes: int) -> str:
    """'3.2 GiB': binary units, one decimal."""
    return _in_units(num_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def show_amount_of_data(num_bytes: int) -> str:
    """'2.0 TB': decimal units, in which data that are moved are priced."""
    return _in_units(num_bytes, 1000, ("B", "KB", "MB", "GB", "TB"))


def _in_units(amount: int, step: int, units: tuple[str, ...]) -> str:
    """In the first unit of which it is less than `step`, or the last; whole numbers of the smallest."""
    value, place = float(amount), 0
    while value >= step and place < len(units) - 1:
        value, place = value / step, place + 1
    shown = f"{value:,.1f}" if value >= step else f"{value:.1f}" if place else str(amount)
    return f"{shown} {units[place]}"


def device_seconds(milli_device_ms: int) -> float:
    """Device-seconds of a ledger amount; for showing only, never for adding up."""
    return milli_device_ms / (MILLI * 1000)
