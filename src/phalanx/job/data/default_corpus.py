"""Real text that every machine with Python has: the standard library's own sources and texts, named `stdlib:` by users."""

import os
import sysconfig
from pathlib import Path
from typing import Final

from phalanx.core.errors import DataError
from phalanx.core.units import show_size

STDLIB: Final = "stdlib:"
"""What `phalanx data prepare` accepts in place of a path."""

CORPUS_BYTES_MIN: Final = 5 * 10**6
_ENDINGS: Final = (".py", ".txt", ".rst")
_SKIPPED: Final = frozenset(
    {
        "site-packages",
        "dist-packages",
        "__pycache__",
        "test",  # absent on many systems, three times the rest, and full of broken text on purpose
        "tests",
        "idle_test",
        "encodings",  # tables of code points, not text
    }
)


def stdlib_folder() -> Path:
    """Where this Python keeps its library, outside any virtual environment."""
    return Path(sysconfig.get_path("stdlib")).resolve()


def standard_library_paths(folder: Path | None = None) -> list[Path]:
    """The library's .py, .txt and .rst files that are UTF-8, sorted. Raises DataError when they hold under 5 MB."""
    root = stdlib_folder() if folder is None else folder
    found = []
    for here, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        found += [Path(here) / name for name in files if name.endswith(_ENDINGS)]
    texts = {path: size for path in sorted(found) if (size := _text_bytes(path)) > 0}
    if sum(texts.values()) < CORPUS_BYTES_MIN:
        raise DataError(
            STDLIB,
            str(root),
            f"holds only {show_size(sum(texts.values()))} of text on this machine, under {show_size(CORPUS_BYTES_MIN)}; install "
            "your system's whole Python standard library, or name files or folders with text of your own, such as /usr/share/doc",
        )
    return list(texts)


def _text_bytes(path: Path) -> int:
    """Its size, or 0 for what is not text that this user can read."""
    try:
        data = path.read_bytes()
        data.decode()
    except (OSError, UnicodeDecodeError):
        return 0
    return 0 if b"\0" in data else len(data)
