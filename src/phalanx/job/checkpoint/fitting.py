"""Memory for every rank's snapshots, or for none's: as many as the rank with the least has room for."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from phalanx.core.errors import PhalanxError, SetupError
from phalanx.job.checkpoint.copier import Copier
from phalanx.job.checkpoint.host_memory import free_bytes
from phalanx.job.checkpoint.memory import BUFFERS_MIN, Memory
from phalanx.job.checkpoint.replicas import node_of
from phalanx.job.checkpoint.segment import layout_of
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.checkpoint.together import told_by_all

_log: Final = logging.getLogger(__name__)


def fitted(copier: Copier, parts: Sequence[Part], most: int) -> tuple[Memory, int]:
    """This rank's memory for `most` snapshots, or for as many fewer as there is room for everywhere; and how many the rank with the
    fewest has, which all agree on: memory that was there already may be for more. A collective of all ranks.

    Raises SetupError, on every rank, where there is none for BUFFERS_MIN.
    """
    for buffers in range(_likely(copier, parts, most), BUFFERS_MIN - 1, -1):
        memory, error = None, None
        try:
            memory = copier.fit(parts, buffers)
        except PhalanxError as refused:
            error = refused
        told = told_by_all((error, memory.buffers if memory is not None else 0))
        first = next((refused for refused, _ in told if refused is not None), None)
        if memory is not None and first is None:
            if buffers < most:
                _log.warning("host memory for %d snapshots of this rank's state instead of %d; see docs/recovery.md", buffers, most)
            return memory, min(there for _, there in told)
        if buffers == BUFFERS_MIN or not isinstance(first, SetupError):
            copier.close()
            raise first or SetupError("snapshots", str(copier.place.folder), "cannot be had")
        copier.give_back()
        told_by_all(None)  # what others of this node had is free again
    raise ValueError(f"{most} snapshots")


def _likely(copier: Copier, parts: Sequence[Part], most: int) -> int:
    """How many every rank wants, and there is room for on every node, from what its ranks need together. To take tens of gigabytes
    in vain, and give them back, lasts a minute."""
    memory, node = copier.memory, node_of(copier.place)
    is_there = memory is not None and list(memory.layout.parts) == list(parts)
    told = told_by_all((node, 0 if is_there else layout_of(parts).size_bytes, free_bytes(), most))
    needed: Counter[str] = Counter()
    for where, size_bytes, _, _ in told:
        needed[where] += size_bytes
    room = [free // needed[where] for where, _, free, _ in told if needed[where]]
    return max(BUFFERS_MIN, min([*(wanted for _, _, _, wanted in told), *room]))
