"""Files side by side in one range of addresses, so that one index reaches all of them.

The range is reserved when it is made, which takes no memory, and each file is mapped into its slot when it is first needed. One
NumPy gather then reads from any number of files, and no file stays open: Python's own `mmap` keeps a descriptor for each, of which
a process may have 1,024. Reading where no file is mapped kills the process; who reads asks for the mapping first.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import SetupError

_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_PROT_NONE: Final = 0
_FAILED: Final = ctypes.c_void_p(-1).value

_mmap: Final = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


class MappedFiles:
    """Slots for files of these sizes, each slot beginning at a multiple of `align_bytes`, itself a multiple of a page.

    begins: the first byte of each slot in `bytes`. The range is given back when nothing refers to `bytes` any more.
    Raises SetupError where the process may not have so many addresses.
    """

    def __init__(self, sizes: Sequence[int], align_bytes: int) -> None:
        slots = -(-np.asarray(sizes, dtype=np.int64) // align_bytes) * align_bytes
        self.begins: NDArray[np.int64] = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(slots, dtype=np.int64)])
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        size = max(int(self.begins[-1]), mmap.PAGESIZE)
        try:
            reserved = mmap.mmap(-1, size, flags=flags, prot=_PROT_NONE)
        except OSError as error:
            fix = f"this process may not reserve so many addresses ({error.strerror}); raise its limit, `ulimit -v unlimited`"
            raise SetupError("address space", f"{size} bytes", fix) from error
        self.bytes: NDArray[np.uint8] = np.frombuffer(reserved, dtype=np.uint8)

    def map(self, slot: int, descriptor: int, size_bytes: int) -> None:
        """The first `size_bytes` of an open file into its slot, for reading. The descriptor may be closed after. Raises OSError."""
        self.map_at(int(self.begins[slot]), descriptor, size_bytes)

    def map_at(self, begin: int, descriptor: int, size_bytes: int) -> None:
        """As `map`, to any multiple of a page."""
        self._place(begin, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor)

    def unmap_at(self, begin: int, size_bytes: int) -> None:
        """Gives back what is mapped there; nobody may read it from now on. Raises OSError."""
        self._place(begin, size_bytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)

    def _place(self, begin: int, size_bytes: int, rights: int, flags: int, descriptor: int) -> None:
        found = _mmap(self.bytes.ctypes.data + begin, size_bytes, rights, flags | _MAP_FIXED, descriptor, 0)
        if found == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
