"""A snapshot's memory: pages with its seal, then the bytes of each part. Shared by a rank and its keeper. No torch.

The seal is written last and broken first, and carries a checksum of itself: a rank that dies while it copies, or while it seals,
leaves a segment without a valid seal, and never one that says more than is there.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from phalanx.core import wire
from phalanx.core.errors import Bug
from phalanx.job.checkpoint.pages import map_now
from phalanx.job.checkpoint.shard_file import Part

HEADER_BYTES: Final = 256 * 1024
"""Whole pages, and room for the note of a run over as many sources as its spec can name, with each one's manifest hash."""
_ALIGN_BYTES: Final = 64
"""Of a cache line, and more than any element type asks for."""
_SEAL: Final = struct.Struct("<8sqqI32s")
_MAGIC: Final = b"phlxsnap"
_CHECK_BYTES: Final = 32
NOTE_BYTES_MAX: Final = HEADER_BYTES - _SEAL.size - _CHECK_BYTES


@dataclass(frozen=True, slots=True)
class Seal:
    """Says that a segment holds the whole state after `step`. note: what the run adds, at most NOTE_BYTES_MAX bytes of UTF-8."""

    step: int
    generation: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each part lies in a segment. digest: of all that, so that two sides never read it differently."""

    parts: tuple[Part, ...]
    offsets: tuple[int, ...]
    size_bytes: int
    digest: bytes


def layout_of(parts: Sequence[Part]) -> Layout:
    """Raises Bug when two parts have one name."""
    if len({part.key for part in parts}) != len(parts):
        raise Bug("two parts of a snapshot have one name")
    offsets, end = [], HEADER_BYTES
    for part in parts:
        offsets.append(end)
        end += -(-part.num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
    size = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
    return Layout(tuple(parts), tuple(offsets), size, blake3(wire.dumps(tuple[Part, ...], tuple(parts)).encode()).digest())


class Segment:
    """One mapped segment. `populate`: have every page mapped now, so that the first copy is as fast as the others. `read_only`: the
    kernel refuses every write by way of this mapping."""

    def __init__(self, descriptor: int, layout: Layout, populate: bool = False, read_only: bool = False) -> None:
        if os.fstat(descriptor).st_size != layout.size_bytes:
            raise Bug(f"a segment of {os.fstat(descriptor).st_size} bytes for a layout of {layout.size_bytes}")
        self.descriptor = descriptor
        self.layout = layout
        access = mmap.PROT_READ if read_only else mmap.PROT_READ | mmap.PROT_WRITE
        self.memory = memoryview(mmap.mmap(descriptor, layout.size_bytes, flags=mmap.MAP_SHARED, prot=access))
        if populate:
            map_now(self.memory)

    def seal(self) -> Seal | None:
        """None when nothing whole is in it."""
        magic, step, generation, num_note, digest = _SEAL.unpack_from(self.memory)
        if magic != _MAGIC or digest != self.layout.digest or num_note > NOTE_BYTES_MAX:
            return None
        signed = bytes(self.memory[: _SEAL.size + num_note])
        if blake3(signed).digest() != bytes(self.memory[_SEAL.size + num_note :][:_CHECK_BYTES]):
            return None
        return Seal(step, generation, signed[_SEAL.size :].decode())

    def write_seal(self, seal: Seal) -> None:
        """Raises Bug for a note that does not fit."""
        note = seal.note.encode()
        if len(note) > NOTE_BYTES_MAX:
            raise Bug(f"a snapshot's note of {len(note)} bytes; {NOTE_BYTES_MAX} fit")
        signed = _SEAL.pack(_MAGIC, seal.step, seal.generation, len(note), self.layout.digest) + note
        whole = signed + blake3(signed).digest()
        self.memory[: len(whole)] = whole

    def break_seal(self) -> None:
        """Before the first byte is overwritten."""
        self.memory[: _SEAL.size] = bytes(_SEAL.size)

    def part(self, index: int) -> memoryview:
        """The bytes of part `index` of the layout, in place."""
        offset = self.layout.offsets[index]
        return self.memory[offset : offset + self.layout.parts[index].num_bytes]

    def pairs(self, numbers: Sequence[int] | None = None) -> list[tuple[Part, memoryview]]:
        """Parts of the layout with their bytes, read only: those of these numbers, or every one."""
        chosen = range(len(self.layout.parts)) if numbers is None else numbers
        return [(self.layout.parts[index], self.part(index).toreadonly()) for index in chosen]
