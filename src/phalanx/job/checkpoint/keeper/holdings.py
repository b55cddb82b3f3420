"""The memory that a keeper holds: segments of this gang's parts, and those of the gang before it until these hold something."""

import os
from collections.abc import Callable, Collection, Sequence

from phalanx.core.errors import StoreUnavailable
from phalanx.job.checkpoint.segment import Layout, Seal, Segment
from phalanx.job.checkpoint.shard_file import Part


class Holdings:
    """now_gone: told when `segments` are let go of, before others take their place. One thread changes it; any may read."""

    def __init__(self, now_gone: Callable[[], None]) -> None:
        self.segments: list[Segment] = []
        self.former: list[Segment] = []  # of other parts, sealed
        self._now_gone = now_gone

    def has(self, layout: Layout, buffers: int) -> bool:
        return len(self.segments) == buffers and self.segments[0].layout.digest == layout.digest

    def take(self, descriptors: Sequence[int], layout: Layout) -> None:
        self.segments = [Segment(descriptor, layout) for descriptor in descriptors]

    def sealed(self) -> list[tuple[Segment, Seal]]:
        return _sealed(self.segments)

    def all_sealed(self) -> list[tuple[Segment, Seal]]:
        return _sealed([*self.segments, *self.former])

    def sealed_at(self, index: int) -> tuple[Segment, Seal] | None:
        """None where there is no such segment, or nothing whole is in it."""
        segment = self.segments[index] if 0 <= index < len(self.segments) else None
        seal = segment.seal() if segment is not None else None
        return (segment, seal) if segment is not None and seal is not None else None

    def put_by(self, layout: Layout) -> None:
        """A gang of another size has other parts, and nothing of them is sealed yet: until then what is counts."""
        if layout.parts and self.sealed() and self.segments[0].layout.digest != layout.digest:
            self.drop_former()
            self.former = [segment for segment, _ in self.sealed()]
            self.segments = [segment for segment in self.segments if segment not in self.former]
        self.let_go()

    def drop_former(self) -> None:
        for segment in self.former:
            os.close(segment.descriptor)
        self.former = []

    def let_go(self) -> None:
        """The memory is free once the ranks that mapped it are gone too, and saves from it have ended."""
        for segment in self.segments:
            os.close(segment.descriptor)
        self.segments = []
        self._now_gone()

    def to_fill(self, saved: Collection[int | None], sending: Collection[Segment]) -> Segment:
        """Where a replica goes: an empty segment, else the oldest; none that is being saved or sent. Raises StoreUnavailable where
        all are."""
        free = [one for at, one in enumerate(self.segments) if at not in saved and one not in sending]
        if not free:
            raise StoreUnavailable("every segment is being saved or sent")
        seals = [(segment, segment.seal()) for segment in free]
        return min(seals, key=lambda pair: (-1, -1) if pair[1] is None else (pair[1].step, pair[1].generation))[0]


def parts_of(segments: Sequence[Segment]) -> tuple[Part, ...]:
    return segments[0].layout.parts if segments else ()


def _sealed(segments: Sequence[Segment]) -> list[tuple[Segment, Seal]]:
    return [(segment, seal) for segment in segments if (seal := segment.seal()) is not None]
