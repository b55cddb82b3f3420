"""Files that no folder lists: they go with the last process that has them open, however that ends. No torch."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Final

_NAMED_ONLY: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
"""What a file system says that makes no file without a name; the last one also where the folder is missing."""


def nameless(folder: Path) -> int:
    """A new one on the disk of that folder, open to read and write. Raises OSError."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NAMED_ONLY:
            raise
    descriptor, name = tempfile.mkstemp(prefix=".phalanx-", dir=folder)
    Path(name).unlink()
    return descriptor


def free_on_disk(folder: Path) -> int:
    """Bytes that an ordinary user may still take there. Raises OSError."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
