"""Hostile text made safe to show: names, log lines and messages come from users, and a terminal obeys what it is sent."""

import sys
from typing import Final
from unicodedata import category

from phalanx.core.errors import PhalanxError, UserError, shown

_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control (escape sequences), format (text direction), lone surrogates, and the two Unicode line breaks."""

VALUE_CHARS_MAX: Final = 200


def clean(value: object, keep: str = "") -> str:
    """`value` as text in which every character that could steer a terminal or break a table's line is written as an escape."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in keep or category(one) not in _UNSAFE else _escaped(one) for one in text)


def clean_log(text: str) -> str:
    """A log for a terminal: newlines and tabs stay."""
    return clean(text, keep="\n\t")


def error_text(error: PhalanxError) -> str:
    """One message: which field, what it was, what to change. It may have lines of its own, such as the end of a log."""
    if not isinstance(error, UserError):
        return clean(error, keep="\n")
    fix = clean(error.fix, keep="\n")
    if error.value is None:
        return f"{clean(error.field)}: {fix}"
    value = shown(error.value)
    cut = value if len(value) <= VALUE_CHARS_MAX else value[: VALUE_CHARS_MAX - 3] + "..."
    return f"{clean(error.field)} is {clean(cut)}: {fix}"


def note(text: str) -> None:
    """A remark to the person at the terminal, beside the answer on standard output."""
    sys.stderr.write(clean(text) + "\n")
    sys.stderr.flush()


def number(count: float) -> str:
    """'8', or '0.25' where it is not whole: at most three decimals."""
    return f"{count:.3f}".rstrip("0").rstrip(".")


def _escaped(one: str) -> str:
    code = ord(one)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
