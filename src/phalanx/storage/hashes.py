"""SHA-256 of bytes and files: the name of everything that is stored by content."""

import hashlib
import re
from pathlib import Path
from typing import Final

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def sha256_bytes(data: bytes) -> str:
    """Lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Lower-case hex; reads in pieces. Raises OSError as `open` does, since the caller knows whose file it is."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_sha256(text: str) -> bool:
    """Whether `text` may be used as a blob's name, and so in a path."""
    return _DIGEST.fullmatch(text) is not None
