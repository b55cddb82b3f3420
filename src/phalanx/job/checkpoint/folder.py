"""Where checkpoints lie, for everything else here: a folder on a disk, or what is below a prefix of an object store. No torch.

Names are plain file names. Whoever gets a `Where` turns it into a `Folder` first; a folder's text (`str`) is a path or a URL, and
`folder_at` of it is the same folder again, in any process.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from phalanx.storage.places import parse_place


class Unreadable(Exception):
    """A file that is not there as it should be; the text goes on after its name, such as 'is missing'. Nothing is away."""


class Refused(Unreadable):
    """It may be there as it should be: the disk would not read it, now."""


class Opened(Protocol):
    """A file that is being read, by any thread. Reading raises Unreadable; of a store StoreUnavailable and SetupError too."""

    @property
    def size_bytes(self) -> int: ...

    def read_into(self, into: Sequence[memoryview], offset: int) -> int:
        """Fills one after the other from `offset` on. How many bytes, fewer than there is room for where it suits; 0 at the end."""

    def pieces(self, offset: int) -> Iterator[memoryview]:
        """All from `offset` to the end, in order; a piece is good until the next one."""


class Folder(Protocol):
    """A folder of checkpoints, or one checkpoint in it. A folder exists by the files in it.

    What changes something raises SetupError where the place or the credentials are somebody's to change, StoreUnavailable where the
    disk is full or the store away; looking raises these for an object store, OSError for a disk.
    """

    reads_at_once: int
    """Parts of a file that are worth reading side by side."""
    batch_bytes: int
    """Neighbours in a file are worth reading at once up to so many; 0 where that gains nothing."""
    poll_s: float
    """How often somebody who waits for a file looks for it."""

    @property
    def name(self) -> str: ...

    @property
    def parent(self) -> "Folder": ...

    def __truediv__(self, name: str) -> "Folder": ...

    def prepare(self) -> None:
        """Before the first file is written."""

    def names(self) -> Collection[str]:
        """Of the files in it; none where it does not exist."""

    def folders(self) -> Collection[str]:
        """Names of the folders in it."""

    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    def read(self, name: str, bytes_max: int) -> bytes:
        """A small file. Raises Unreadable where it is missing, no plain file, or larger than that; Refused, which is one, where a
        disk cannot read it."""

    def opened(self, name: str) -> AbstractContextManager[Opened]:
        """Raises Unreadable where it is missing or no plain file."""

    def write(self, name: str, data: bytes) -> None:
        """Makes the file hold exactly `data`, durably: readers meet the old one or the new one."""

    def write_views(self, name: str, views: Sequence[memoryview]) -> list[str]:
        """As `write`, in bounded memory; the BLAKE3 of each view."""

    def version(self, name: str) -> str | None:
        """Of the file as it is now, for `swap`; None where there is none."""

    def swap(self, name: str, data: bytes, version: str | None) -> bool:
        """As `write`, in place of that version alone, and of none where it is None; False when it is another by now. A disk whose
        file system has no locks looks just before."""

    def remove(self, name: str) -> None:
        """Also of a file that is not there."""

    def remove_all(self) -> None:
        """The folder with all that is in it."""

    def remove_if_empty(self) -> None:
        """Where an empty folder is something."""


Where: TypeAlias = Path | Folder


def folder_at(where: Where | str) -> Folder:
    """Raises SetupError for text that names no place, and what opening a store raises; asks nothing of a store."""
    from phalanx.job.checkpoint.disk_folder import DiskFolder

    if isinstance(where, Path):
        return DiskFolder(where)
    if not isinstance(where, str):
        return where
    if not is_remote(where):
        return DiskFolder(parse_place(where, "checkpoints").path if "://" in where else Path(where))
    from phalanx.job.checkpoint.object_folder import object_folder_at  # its library costs a keeper of a disk nothing

    return object_folder_at(where)


def is_remote(text: str) -> bool:
    """Whether it is a URL of an object store."""
    return "://" in text and urlsplit(text).scheme != "file"
