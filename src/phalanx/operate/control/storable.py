"""Whether the log can give back what it is given: a value that JSON changes would be there, and unreadable, at the next start."""

from typing import Any

from phalanx.core import wire


def storable(kind: Any, value: Any) -> bool:
    """False for a NaN where a number may also be text (it comes back as text), and for half a surrogate pair (it has no UTF-8)."""
    try:
        return bool(wire.loads(kind, wire.dumps(kind, value)) == value)
    except ValueError:
        return False
