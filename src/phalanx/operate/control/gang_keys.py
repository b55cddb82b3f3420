"""The key of which tokens of gangs are made: shims of an attempt's nodes show each other theirs. No record or event has one; a node
keeps that of an attempt it runs among the attempt's own files, which only its user may read.

It lies in the home's `gang.key`. Without it (deleted, or of a backup that lacks it) a new one is made: gangs that run are not
concerned, and one that was half told to start begins again.
"""

import os
from pathlib import Path
from typing import Final

from phalanx.storage.atomic import write_atomic

KEY_FILE: Final = "gang.key"
_KEY_BYTES: Final = 32


def gang_key(home: Path) -> bytes:
    """The home's, made where there is none. Raises SetupError, StoreUnavailable, OSError."""
    path = home / KEY_FILE
    try:
        known = bytes.fromhex(path.read_text(encoding="ascii").strip())
        if len(known) == _KEY_BYTES:
            path.chmod(0o600)
            return known
    except (FileNotFoundError, ValueError):
        pass
    made = os.urandom(_KEY_BYTES)
    write_atomic(path, made.hex().encode() + b"\n", 0o600)
    return made
