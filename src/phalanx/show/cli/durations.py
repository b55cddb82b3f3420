"""Durations that people type."""

from phalanx.core.errors import SpecError
from phalanx.core.units import duration_ms


def asked_ms(option: str, text: str) -> int | None:
    """Milliseconds of an option such as '90s'; None when it was not given. Raises SpecError."""
    if not text:
        return None
    try:
        return duration_ms(text)
    except ValueError as error:
        raise SpecError(option, text, str(error)) from error
