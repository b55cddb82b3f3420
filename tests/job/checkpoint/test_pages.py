"""Pages that are mapped before they are needed: seen in the kernel's own account of the mapping."""

import mmap
import os
from pathlib import Path

from phalanx.job.checkpoint.pages import map_now

SIZE = 96 * 2**20


def resident_kib(name: str) -> int:
    """Of this process's mappings of the memory of that name."""
    lines, found = Path("/proc/self/smaps").read_text().splitlines(), 0
    mine = False
    for line in lines:
        if line.split(" ", 1)[0].count("-") == 1 and ":" not in line.split(" ", 1)[0]:
            mine = name in line
        elif mine and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_every_page_is_mapped_at_once_and_keeps_what_it_holds() -> None:
    descriptor = os.memfd_create("phalanx-test-pages")
    os.posix_fallocate(descriptor, 0, SIZE)
    os.pwrite(descriptor, b"kept", SIZE - 4)
    with mmap.mmap(descriptor, SIZE) as mapped, memoryview(mapped) as memory:
        assert resident_kib("phalanx-test-pages") == 0
        map_now(memory)
        assert resident_kib("phalanx-test-pages") == SIZE // 1024
        assert bytes(memory[-4:]) == b"kept" and not any(memory[:4096])
    os.close(descriptor)
