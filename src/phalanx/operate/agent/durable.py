"""Facts on disk. Standard library only: the shim imports this."""

import json
import os
from pathlib import Path


def write_durable(path: Path, fact: object) -> None:
    """`fact` as JSON at `path`, whole or not at all, there after a power cut. Raises OSError."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    with staged.open("w") as out:
        json.dump(fact, out)
        out.flush()
        os.fsync(out.fileno())
    staged.replace(path)
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
