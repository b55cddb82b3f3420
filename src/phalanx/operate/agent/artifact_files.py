"""The folder in which ranks leave artifacts, read with suspicion: they are user code, and may put anything there at any moment.

Every step goes through a descriptor of the folder above and follows no link, so that nothing outside is ever read, whatever is
swapped meanwhile.
"""

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from phalanx.core.artifact_names import FILES_MAX, NAME_CHARS_MAX, is_artifact_name
from phalanx.core.units import show_size
from phalanx.storage.blobs import BLOB_BYTES_MAX

ENTRIES_MAX: Final = 5 * FILES_MAX
"""Looked at, whatever they are: a folder of a million sockets must not hold up the rest."""

DEPTH_MAX: Final = 16
FILE_BYTES_MAX: Final = BLOB_BYTES_MAX
TRIES: Final = 5
CALM_NS: Final = 20_000_000
AGAIN_BYTES_MAX: Final = 4 * 1024 * 1024
"""A larger file is not copied again for having changed meanwhile."""

_PART_BYTES: Final = 1024 * 1024
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
State = tuple[int, int, int, int]
"""Inode, size, and times of change of a file's bytes and of its entry, in ns: another state is another content, or may be."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file that may be sent."""

    name: str
    state: State

    @property
    def size_bytes(self) -> int:
        """As it was looked at."""
        return self.state[1]

    @property
    def changed_ns(self) -> int:
        """Unix time of its last change, if the ranks did not set it otherwise."""
        return self.state[2]


@dataclass(slots=True)
class Look:
    """What is there. `problems`: what is left out, a sentence for each kind."""

    files: list[Found] = field(default_factory=list)
    problems: set[str] = field(default_factory=set)
    num_entries: int = 0

    def full(self) -> bool:
        """Whether no more may be looked at; says so."""
        if len(self.files) >= FILES_MAX:
            self.problems.add(f"only {FILES_MAX} files of an attempt are kept")
        elif self.num_entries >= ENTRIES_MAX:
            self.problems.add(f"only {ENTRIES_MAX} entries are looked at")
        else:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Copied:
    """A moment of a file: what was copied, and its state when it was opened."""

    sha256: str
    size_bytes: int
    state: State


def look(root: Path) -> Look:
    """Every file in `root` and below that may be sent. What cannot be read is left out."""
    seen = Look()
    try:
        handle = os.open(root, _FOLDER)
    except FileNotFoundError:
        return seen
    except OSError as error:
        seen.problems.add(f"the folder itself cannot be read ({error.strerror})")
        return seen
    with _closing(handle):
        _walk(handle, "", 1, seen)
    return seen


def copy(root: Path, name: str, into: IO[bytes]) -> Copied | None:
    """Copies as many bytes as the file has now; None when there is no such file any more, or it is over FILE_BYTES_MAX.

    Many programs empty a file and write it anew, so a moment in which it does not change is waited for; not for long, since some
    never stop. Raises OSError when the copy cannot be written.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            source = _open(root, name)
        except OSError:
            return None
        with _closing(source):
            known = os.fstat(source)
            if not stat.S_ISREG(known.st_mode) or known.st_size > FILE_BYTES_MAX:
                return None
            if tries_left and 0 <= time.time_ns() - known.st_mtime_ns < CALM_NS:
                time.sleep(CALM_NS / 1e9)
                continue
            copied = _copied(source, known, into)
            if not tries_left or known.st_size > AGAIN_BYTES_MAX or _state(os.fstat(source)) == copied.state:
                break
    return copied


def _copied(source: int, known: os.stat_result, into: IO[bytes]) -> Copied:
    into.seek(0)
    into.truncate()
    digest, left = hashlib.sha256(), known.st_size
    while left and (part := os.read(source, min(left, _PART_BYTES))):
        digest.update(part)
        into.write(part)
        left -= len(part)
    return Copied(digest.hexdigest(), known.st_size - left, _state(known))


def _walk(handle: int, prefix: str, depth: int, seen: Look) -> None:
    with os.scandir(handle) as entries:
        for entry in entries:
            if seen.full():
                return
            seen.num_entries += 1
            with contextlib.suppress(OSError):  # gone, or not ours to read: nothing to send
                _take(handle, prefix, entry, depth, seen)


def _take(handle: int, prefix: str, entry: "os.DirEntry[str]", depth: int, seen: Look) -> None:
    name, known = prefix + entry.name, entry.stat(follow_symlinks=False)
    if not is_artifact_name(name):
        seen.problems.add(f"names are at most {NAME_CHARS_MAX} characters of visible UTF-8")
    elif stat.S_ISDIR(known.st_mode):
        if depth == DEPTH_MAX:
            seen.problems.add(f"folders lie at most {DEPTH_MAX} deep")
            return
        with _closing(os.open(entry.name, _FOLDER, dir_fd=handle)) as inner:
            _walk(inner, f"{name}/", depth + 1, seen)
    elif not stat.S_ISREG(known.st_mode):
        seen.problems.add("only files and folders are taken, no links, pipes or sockets")
    elif known.st_size > FILE_BYTES_MAX:
        seen.problems.add(f"files over {show_size(FILE_BYTES_MAX)} are left out; save those as checkpoints, or in parts")
    else:
        seen.files.append(Found(name, _state(known)))


def _open(root: Path, name: str) -> int:
    """A descriptor of the file, through one of each folder on the way. Raises OSError."""
    *folders, last = name.split("/")
    with contextlib.ExitStack() as opened:
        handle = opened.enter_context(_closing(os.open(root, _FOLDER)))
        for folder in folders:
            handle = opened.enter_context(_closing(os.open(folder, _FOLDER, dir_fd=handle)))
        return os.open(last, _FILE, dir_fd=handle)


@contextlib.contextmanager
def _closing(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


def _state(known: os.stat_result) -> State:
    return known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns
