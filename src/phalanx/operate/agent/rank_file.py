"""A file that a rank writes, read with suspicion: a rank is user code, and may put anything in its place.

A file has a cap: its first LOG_BYTES_MAX or RECORDS_BYTES_MAX bytes, then a line that says so. What a rank writes beyond is
dropped; it never notices. In a record file that line is no record: the control plane warns of it once, in its log.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOG_BYTES_MAX: Final = 2**30
RECORDS_BYTES_MAX: Final = 4 * 2**30
"""About eight million steps of one rank in one attempt. A model that is registered beyond it is not heard of."""

SLACK_BYTES: Final = 16 * 1024 * 1024
"""A file this far beyond its cap is cut back, so that a rank that prints without end does not fill the disk."""

_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)


class NotAFile(Exception):
    """What is there is not a file that could be read; there is nothing to ship."""


@dataclass(frozen=True, slots=True)
class RankFile:
    """An append-only file of a rank. `cap`: how much of it counts; None for all. `what`: it is, in the line at the cut."""

    path: Path
    cap: int | None = None
    what: str = "log"

    def size(self) -> int:
        """How many bytes there are to ship. Opens nothing. Raises NotAFile."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise NotAFile(f"{self.path}: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode):
            raise NotAFile(f"{self.path} is not a regular file")
        return found.st_size if self.cap is None or found.st_size <= self.cap else self.cap + len(self._cut())

    def read(self, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset` on; none when there are none yet. Raises NotAFile, and OSError when it may be tried
        again."""
        try:
            handle = os.open(self.path, _READ)
            try:
                return self._read(handle, offset, limit)
            finally:
                os.close(handle)
        except FileNotFoundError:
            return b""
        except OSError as error:
            if error.errno in _PASSES:
                raise
            raise NotAFile(f"{self.path}: {error.strerror}") from error

    def trim(self) -> None:
        """Cuts off what nobody will read. The rank appends, so it goes on behind the cut."""
        if self.cap is None:
            return
        try:
            if self.path.lstat().st_size > self.cap + SLACK_BYTES:
                handle = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.ftruncate(handle, self.cap + 1)  # one more than the cap: it still counts as cut
                finally:
                    os.close(handle)
        except OSError:
            return  # gone, or not a file: nothing to cut

    def _read(self, handle: int, offset: int, limit: int) -> bytes:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise NotAFile(f"{self.path} is not a regular file")
        if self.cap is None or offset + limit <= self.cap:
            return os.pread(handle, limit, offset)
        if offset < self.cap:
            return os.pread(handle, self.cap - offset, offset)
        return self._cut()[offset - self.cap :][:limit] if found.st_size > self.cap else b""

    def _cut(self) -> bytes:
        return f"\nphalanx: this {self.what} is cut here: it went on after {self.cap} bytes\n".encode()
