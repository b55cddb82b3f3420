"""One row of the audit log, before it is one. Pure."""

from dataclasses import dataclass
from typing import Any, Final

DONE: Final = "done"
REFUSED: Final = "refused"

_WIDTHS: Final = {"who": 64, "token": 16, "what": 32, "target": 255, "address": 64, "outcome": 16, "detail": 500}


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One row that is to be. who: the user; token: its id. what: such as `job.cancel`, on `target`. address: from where."""

    at_ms: int
    who: str
    token: str
    what: str
    target: str
    address: str
    outcome: str = DONE
    detail: str = ""


def row_of(note: Note) -> dict[str, Any]:
    """As the table has it: cut to its columns and escaped, since a row that a database refuses would take its change with it."""
    texts = {name: _fitting(getattr(note, name), width) for name, width in _WIDTHS.items()}
    return {"at_ms": note.at_ms, **texts}


def _fitting(text: str, width: int) -> str:
    """Printable, so that no row forges another where it is shown, and no longer than its column."""
    plain = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    plain = plain.encode(errors="backslashreplace").decode()
    return plain if len(plain) <= width else f"{plain[: width - 1]}…"
