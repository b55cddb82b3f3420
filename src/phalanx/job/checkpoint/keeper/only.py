"""One keeper a place. Imports next to nothing: it is asked before the fork, while a rank waits."""

import fcntl
import os


def lock_name(slot: int) -> str:
    return f"keeper-{slot}.lock"


def is_the_only_one(folder: str, slot: int) -> bool:
    """Takes the place's lock, which this process and its children hold until the last of them ends. Not where the folder has gone:
    the keeper before has just ended and taken it along, and who wants another starts it again."""
    path = os.path.join(folder, lock_name(slot))  # noqa: PTH118 (pathlib costs as much as all the rest)
    try:
        lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), os.stat(path))  # noqa: PTH116 (the file may be a newer keeper's by now)
    except (BlockingIOError, FileNotFoundError):
        return False
