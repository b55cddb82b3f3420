"""Tars in a folder of this machine."""

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from phalanx.job.data.manifest import FileEntry
from phalanx.job.data.shards import Watch, read_small, unreadable, wrong_size
from phalanx.job.data.tars.index import Place
from phalanx.job.data.tars.manifest import REINDEX, SampleManifest, of_samples
from phalanx.job.data.tars.reading import Asked
from phalanx.job.data.verify import VerifyProgress, verify_files

_FILES_MAX: Final = 64


class FolderTars:
    """See `Tars`."""

    advice: Final = f"restore it, or {REINDEX}"
    cache: Final = None

    def __init__(self, folder: Path, manifest: SampleManifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._lock = threading.Lock()
        self._files: OrderedDict[int, _Tar] = OrderedDict()

    @property
    def place(self) -> str:
        return str(self._folder)

    def small(self, entries: Sequence[FileEntry], watch: Watch | None) -> list[bytes]:
        """Any that is missing or damaged is named."""
        return [read_small(self._folder, entry) for entry in entries]

    def together(self, asked: Sequence[Asked]) -> Iterator[list[Asked]]:
        """One at a time: they are always there."""
        return ([one] for one in asked)

    def held(self, asked: Sequence[Asked], watch: Watch | None) -> AbstractContextManager[None]:
        """Nothing is to be waited for."""
        return nullcontext()

    def read(self, shard: int, place: Place) -> bytes:
        """None of what the disk cannot read."""
        entry = self._manifest.shards[shard].tar
        path = self._folder / entry.name
        try:
            data = self._tar(shard, path).read(place.offset, place.size)
        except OSError as error:
            if error.errno == errno.EIO:
                return b""
            raise of_samples(unreadable(entry, path, error)) from error
        if len(data) < place.size:
            raise of_samples(wrong_size(entry, self._folder, place.offset + len(data)))
        return data

    def again(self, shard: int, place: Place) -> bytes:
        """From the disk, past the page cache, and from the file that has the name by now."""
        with self._lock:
            self._files.pop(shard, None)
        with contextlib.suppress(OSError):  # which the read meets, too, and names
            self._tar(shard, self._folder / self._manifest.shards[shard].tar.name).let_go()
        return self.read(shard, place)

    def verify(self, progress: VerifyProgress | None) -> None:
        """All files at once by several threads."""
        verify_files(self._folder, self._manifest, progress)

    def check_sizes(self) -> None:
        """Of the tars alone: indices are compared whole when they are read. Raises DataError."""
        for shard in self._manifest.shards:
            path = self._folder / shard.tar.name
            try:
                size = path.stat().st_size
            except OSError as error:
                raise of_samples(unreadable(shard.tar, path, error)) from error
            if size != shard.tar_bytes:
                raise of_samples(wrong_size(shard.tar, self._folder, size))

    def _tar(self, shard: int, path: Path) -> "_Tar":
        with self._lock:
            found = self._files.get(shard) or _Tar(path)
            self._files[shard] = found
            self._files.move_to_end(shard)
            if len(self._files) > _FILES_MAX:
                self._files.popitem(last=False)
            return found


class _Tar:
    """An open file, closed when the last reader lets go of it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset: int, size: int) -> bytes:
        """Fewer bytes only where the file ends."""
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def let_go(self) -> None:
        """Of all that the page cache has of it. Of a stretch, Linux lets go of the pages that lie in it whole (posix_fadvise(2)):
        of a small field none does."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
