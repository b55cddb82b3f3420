"""What another process writes to file descriptor 1, caught, so that it can be made safe or put into JSON before it is shown."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def captured() -> Iterator[Callable[[], str]]:
    """Inside, file descriptor 1 is a temporary file; afterwards the yielded callable gives its text."""
    sys.stdout.flush()
    parts: list[bytes] = []
    with tempfile.TemporaryFile() as file:
        before = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield lambda: b"".join(parts).decode("utf-8", errors="replace")
        finally:
            sys.stdout.flush()
            os.dup2(before, 1)
            os.close(before)
            parts.append(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
