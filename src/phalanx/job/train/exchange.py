"""Replicas of a gang's snapshots: which place holds whose, which step all replicate next, and who gets what back after a fault.

A gang goes back to one step, so all ranks replicate the same ones: the next is begun when every rank's last one has ended, and each
rank keeps its own snapshot of the newest step that every rank has a replica of.
"""

import contextlib
import logging
import os
import secrets
from typing import Final

import torch
import torch.distributed as dist

from phalanx.core.errors import NotFound, PhalanxError
from phalanx.job.checkpoint.copier import Copier
from phalanx.job.checkpoint.keeper.messages import Peer
from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.replicas import (
    Kept,
    Moment,
    address_towards,
    find,
    holder_of,
    newest,
    node_of,
    of_place,
    peer_of,
    slots_of,
)
from phalanx.job.checkpoint.together import told_by_all

_log: Final = logging.getLogger(__name__)
LOCAL: Final = "127.0.0.1"
LEFT: Final = 2
"""Segments without which snapshots could not go on: the newest whole one, and one that is being copied."""


BUFFERS_LEAST: Final = LEFT + 1
"""With no more there is none to keep besides the one on its way."""


class Exchange:
    """Of one place. count: how many other places hold each of its states, 0 or 1."""

    def __init__(self, place: Place, count: int) -> None:
        self.secret = ""  # of the gang's keepers; made by the first generation's rank 0, and told to whoever comes later
        self._place = place
        self._count = count
        self._peer: Peer | None = None
        self._next = -1  # the step that is replicated once it is sealed
        self.agreed = -1  # the newest step of which every rank has a replica

    def meet(self, copier: Copier, after: int | None) -> None:
        """Ranks tell each other where their keepers are reached. after: what this generation goes on from, if from memory. A
        collective of all ranks, first in each generation."""
        memory = copier.memory
        assert memory is not None
        told = told_by_all((node_of(self._place), self.secret, secrets.token_hex(32)))
        self.secret = next((secret for _, secret, _ in told if secret), told[0][2])
        nodes = [node for node, _, _ in told]
        host, port = self._listen(memory, _host()) if self._count or len(set(nodes)) > 1 else ("", 0)
        reached = told_by_all((self._place.key, host, port))
        rank, holders = dist.get_rank(), [holder_of(rank, nodes) for rank in range(len(nodes))]
        holder = holders[rank] if self._count else None
        self._peer, self._next, copier.replicated = None, -1, -1
        memory.keep_only(1 << 62)
        if holder is not None and reached[holder][2] and memory.buffers > BUFFERS_LEAST:
            _, host, port = reached[holder]
            self._peer = Peer(host=host, port=port, secret=self.secret, owner=self._place.key)
        if port:
            memory.expect([reached[owner][0] for owner, other in enumerate(holders) if other == rank and self._count], after)
        copier.sealed_then = self._send
        if self._count and self._peer is None:
            _log.warning("rank %d's state gets no replicas: no other place takes them, or memory is too little", rank)

    def agree(self, copier: Copier, step: int, saves_wait: bool) -> None:
        """Whether the state after `step` is replicated. A collective of all ranks where there are replicas."""
        if not self._count or copier.memory is None:
            return
        copier.hear()
        memory = copier.memory
        free = self._peer is not None and not memory.is_replicating and not saves_wait and memory.can_save(LEFT)
        answer = torch.tensor([int(free), copier.replicated], dtype=torch.int64)
        dist.all_reduce(answer, dist.ReduceOp.MIN)
        all_free, self.agreed = (int(one) for one in answer)
        memory.keep_only(self.agreed)
        self._next = step if all_free else -1

    def gathered(self, copier: Copier) -> list[Kept]:
        """All that any keeper of the gang holds. A collective of all ranks."""
        if copier.memory is not None:
            with contextlib.suppress(PhalanxError):  # then this place has nothing
                copier.memory.repair()
        told = told_by_all((node_of(self._place), self._place.slot, self.secret))
        self.secret = next((secret for _, _, secret in told if secret), "")
        host, here = _host(), node_of(self._place)
        live = sorted(slot for node, slot, _ in told if node == here)
        mine = [self._place.slot]
        if live[0] == self._place.slot:  # and of slots without a process
            mine += [slot for slot in slots_of(self._place) if slot not in live]
        places = [Place(folder=self._place.folder, slot=slot, attempt=self._place.attempt) for slot in mine]
        return [one for kept in told_by_all([one for place in places for one in of_place(place, host)]) for one in kept]

    def recall(self, copier: Copier, buffers: int) -> int | None:
        """See Snapshots.recall."""
        kept = self.gathered(copier)
        while (at := newest(kept, dist.get_world_size())) is not None:
            error = self._brought(copier, kept, at, buffers)
            first = next((told for told in told_by_all(error) if told), "")
            if not first:
                return at.step
            _log.warning("the state after step %d cannot be had from memory: %s", at.step, first)
            kept = [one for one in kept if (one.generation, one.step) != (at.generation, at.step)]
        return None

    def _brought(self, copier: Copier, kept: list[Kept], at: Moment, buffers: int) -> str:
        """Why not, or ''."""
        found = find(kept, at, dist.get_rank(), self._place)
        assert found is not None
        if found.holder == self._place.key and not found.is_replica:
            return ""
        try:
            if not found.port:
                raise NotFound("replica", at.step, f"slot {found.slot} of {found.node} takes no calls")
            copier.bring(peer_of(found, self.secret), at.step, buffers)
        except PhalanxError as error:
            return f"rank {dist.get_rank()}: {error.sentence()}"
        what = "a replica" if found.is_replica else "the memory"
        _log.info("rank %d has the state after step %d from %s in slot %d", dist.get_rank(), at.step, what, found.slot)
        return ""

    def _listen(self, memory: Memory, host: str) -> tuple[str, int]:
        """Where the keeper really is reached; port 0 where it is not."""
        try:
            port = memory.listen(host, self.secret)
        except PhalanxError as error:
            _log.warning("%s", error.sentence())
            return "", 0
        return memory.host, port

    def _send(self, memory: Memory, step: int) -> None:
        """In the copying thread."""
        if self._peer is not None and step == self._next:
            memory.replicate(step, self._peer, keeps=True)


def _host() -> str:
    """Of this node, as the others see it: also while there are none, since keepers go on where they first listened."""
    try:
        return address_towards(os.environ.get("MASTER_ADDR", "") or LOCAL)
    except OSError:  # nor does this machine's own name lead anywhere
        return LOCAL
