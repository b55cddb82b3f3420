"""Memory for every rank's snapshots, or for none's: as many as the rank with the least has room for."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from phalanx.core.errors import PhalanxError, SetupError
from phalanx.job.checkpoint.copier import Copier
from phalanx.job.checkpoint.host_memory import free_bytes
from phalanx.job.checkpoint.keeper.messages import BUFFERS_MIN
from phalanx.job.checkpoint.keeper.segments import SPARE_BYTES, TOO_LITTLE, room
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.replicas import node_of
from phalanx.job.checkpoint.segment import layout_of
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.checkpoint.together import told_by_all

_log: Final = logging.getLogger(__name__)


class Fitting:
    """This rank's memory for `most` snapshots, or for as many fewer as there is room for everywhere, while it is being taken. A
    collective of all ranks, as is every method."""

    def __init__(self, copier: Copier, parts: Sequence[Part], most: int) -> None:
        self._copier = copier
        self._parts = parts
        self._most = most
        copier.rest()  # what was being taken for a generation before this
        self._buffers = _likely(copier, parts, most)
        copier.begin_fit(parts, self._buffers)

    def finish(self) -> tuple[Memory, int]:
        """See `ready`; waits for it."""
        while True:
            if (found := self.ready(math.inf)) is not None:
                return found

    def ready(self, wait_s: float = 0.0) -> tuple[Memory, int] | None:
        """The memory, and how many snapshots the rank with the fewest has room for, which all agree on: memory that was there
        already may be for more. None while some rank's is still being taken, for which it waits so long.

        Raises SetupError, on every rank, where there is none for BUFFERS_MIN.
        """
        if not all(told_by_all(self._copier.has_fit(wait_s))):
            return None
        memory, error = None, None
        try:
            memory = self._copier.end_fit()
        except PhalanxError as refused:
            error = refused
        told = told_by_all((error, memory.buffers if memory is not None else 0))
        first = next((refused for refused, _ in told if refused is not None), None)
        if memory is not None and first is None:
            self._tell()
            return memory, min(there for _, there in told)
        self._try_fewer(first)
        return None

    def _try_fewer(self, why: PhalanxError | None) -> None:
        self._copier.give_back()
        if self._buffers == BUFFERS_MIN or not (isinstance(why, SetupError) and why.field == TOO_LITTLE):
            raise why or SetupError("snapshots", str(self._copier.place.folder), "cannot be had")
        told_by_all(None)  # what others of this node had is free again
        self._buffers -= 1
        self._copier.begin_fit(self._parts, self._buffers)

    def _tell(self) -> None:
        if self._buffers < self._most:
            words = "host memory for %d snapshots of this rank's state instead of %d; see docs/recovery.md"
            _log.warning(words, self._buffers, self._most)


def _likely(copier: Copier, parts: Sequence[Part], most: int) -> int:
    """How many every rank wants, and there is room for on every node, from what its ranks need together. To take tens of gigabytes
    in vain, and give them back, lasts a minute."""
    memory, node = copier.memory, node_of(copier.place)
    is_there = memory is not None and list(memory.layout.parts) == list(parts)
    told = told_by_all((node, 0 if is_there else layout_of(parts).size_bytes, room(copier.place.scratch, free_bytes), most))
    needed: Counter[str] = Counter()
    for where, size_bytes, _, _ in told:
        needed[where] += size_bytes
    fit = [(free - SPARE_BYTES) // needed[where] for where, _, free, _ in told if needed[where]]
    return max(BUFFERS_MIN, min([*(wanted for _, _, _, wanted in told), *fit]))
