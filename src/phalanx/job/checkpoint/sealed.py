"""Sealed snapshots of any place of this node, to be read only: for whoever makes another gang's state of them. No torch.

A rank writes its own place by `memory.Memory`. Its keeper holds the memory whether that rank lives or not.
"""

import os
from typing import Final

from phalanx.core.errors import NotFound
from phalanx.job.checkpoint.keeper.link import KeeperGone, look
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.segment import Seal, Segment, layout_of
from phalanx.job.checkpoint.shard_file import Part

_TRIES: Final = 3
"""A keeper may end, or be replaced by its rank, just when it is looked at."""


class Sealed:
    """What one place holds: of each sealed step its parts, each with its place in the whole tensor, and the note beside them.

    Also those of other parts, of a gang of another size, until the present one has some. The memory is the place's own: it does not
    change while its rank does not train; where the rank may go on, `is_whole` after reading says whether what was read is what was
    sealed.
    """

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments

    @classmethod
    def at(cls, place: Place) -> "Sealed":
        """Raises NotFound when the place has no keeper or that holds nothing, UserError when it is of another attempt."""
        for _ in range(_TRIES):
            try:
                link, holding, descriptors = look(place)
            except KeeperGone:
                continue
            link.close()  # the descriptors keep the memory
            if not descriptors:
                break
            now, former = layout_of(holding.parts), layout_of(holding.former_parts)
            layouts = [now] * holding.buffers + [former] * holding.former_buffers
            return cls([Segment(one, layout, read_only=True) for one, layout in zip(descriptors, layouts, strict=True)])
        raise NotFound("snapshots", str(place.folder), f"slot {place.slot} holds none")

    def steps(self) -> tuple[int, ...]:
        """Those that are sealed, newest first."""
        return tuple(sorted({seal.step for seal, _ in self._whole()}, reverse=True))

    def seal_of(self, step: int, generation: int | None = None) -> Seal:
        """Its generation and note; of the youngest generation where none is given. Raises NotFound."""
        return self._find(step, generation)[0]

    def parts(self, step: int, generation: int | None = None) -> list[tuple[Part, memoryview]]:
        """Every part with its bytes, in place. Raises NotFound."""
        return self._find(step, generation)[1].pairs()

    def is_whole(self, seal: Seal) -> bool:
        """Whether that snapshot is still there as it was."""
        return any(seal == other for other, _ in self._whole())

    def close(self) -> None:
        """What was read in place must not be used any more."""
        for segment in self._segments:
            os.close(segment.descriptor)
        self._segments = []  # the mappings go with the last view of them

    def _whole(self) -> list[tuple[Seal, Segment]]:
        return [(seal, segment) for segment in self._segments if (seal := segment.seal()) is not None]

    def _find(self, step: int, generation: int | None) -> tuple[Seal, Segment]:
        found = [pair for pair in self._whole() if pair[0].step == step and generation in (None, pair[0].generation)]
        if not found:
            raise NotFound("snapshot", step, f"there are {list(self.steps())}")
        return max(found, key=lambda pair: pair[0].generation)
