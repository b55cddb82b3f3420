"""Replicas of a gang's snapshots: which place holds whose, where they are sent, and who gets what back after a fault.

Which step all send, and what each keeps meanwhile: `rounds`.
"""

import contextlib
import logging
import os
import secrets
from dataclasses import dataclass
from typing import Final, Literal

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
    node_of,
    of_place,
    peer_of,
    safest,
    slots_of,
)
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.train.rounds import LEFT, Rounds, Version

_log: Final = logging.getLogger(__name__)
LOCAL: Final = "127.0.0.1"
BUFFERS_LEAST: Final = LEFT + 1
"""With no more there is none to keep besides the one on its way."""
Recalled = Literal["here", "elsewhere", "gone"]
"""Where a state is: each rank's place has its part of it; some has its own with other parts only; some part is not to be had."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What a rank tells the others of its place. key: Place.key. port: 0 where nobody reaches its keeper. can_send: it has memory
    to send from. has_state: the state from which it goes on is sealed there. failed: its holder did not take its last replica."""

    key: str
    host: str
    port: int
    can_send: bool
    has_state: bool = False
    failed: bool = False


class Exchange:
    """Of one place. count: how many other places hold each of its states, 0 or 1."""

    def __init__(self, place: Place, count: int) -> None:
        self.secret = ""  # of the gang's keepers; made by the first generation's rank 0, and told to whoever comes later
        self._place = place
        self._count = count
        self._rounds = Rounds()
        self._nodes: list[str] = []  # of each rank
        self._skips: list[int] = []  # of each rank, how many holders have failed it
        self._peer: Peer | None = None
        self._owners: list[str] = []  # whose replicas lie here
        self._told = ("", 0)  # where the others think that this place is reached
        self._is_settled = False  # nothing of before is needed
        self._base: tuple[Version, Version] | None = None  # from which this generation goes on, and what to keep until then

    @property
    def agreed(self) -> int:
        """The newest step of which every rank has a replica, made in this generation; -1 when there is none."""
        return self._rounds.agreed

    def meet(self, copier: Copier, after: int | None) -> None:
        """Ranks tell each other where their keepers are reached. after: what this generation goes on from, if from memory. A
        collective of all ranks, first in each generation."""
        memory = copier.memory
        assert memory is not None
        told = told_by_all((node_of(self._place), self.secret, secrets.token_hex(32)))
        self.secret = next((secret for _, secret, _ in told if secret), told[0][2])
        self._nodes = [node for node, _, _ in told]
        self._skips, self._is_settled, copier.replicated = [0] * len(told), False, None
        at, kept = self._base if self._base is not None and self._base[0][1] == after else (None, None)
        self._base = None
        if self._count or len(set(self._nodes)) > 1:
            self._listen(memory, _host())
            if after is not None:
                memory.forget_replicas(after)
        reached = self._direct(memory, has_state=at is not None and _is_there(memory, at))
        can_keep = self._count > 0 and len(reached) > 1 and all(one.can_send for one in reached)
        self._rounds = Rounds(kept if can_keep else None)
        memory.keep_only(self._rounds.kept)
        copier.keeps_former = can_keep and all(one.port for one in reached)
        copier.sealed_then = self._send
        if at is not None and copier.keeps_former and all(one.has_state for one in reached):
            self._rounds.begin(at)
            with contextlib.suppress(PhalanxError):  # then this round fails, and the next one comes
                self._send(memory, at[1])
        if self._count and self._peer is None:
            _log.warning("rank %d's state gets no replicas: no other place takes them, or memory is too little", dist.get_rank())

    def agree(self, copier: Copier, step: int, generation: int, saves_wait: bool) -> None:
        """Whether the state after `step` is replicated. A collective of all ranks where there are replicas."""
        memory = copier.memory
        if not self._count or memory is None:
            return
        copier.hear()
        if not memory.port:
            with contextlib.suppress(PhalanxError):  # it was said, and the next step tries again
                memory.listen(_host(), self.secret)
        under_way, can_send = self._rounds.under_way, self._peer is not None and not saves_wait
        moved = (memory.host, memory.port) != self._told
        agreed = self._rounds.agree(copier, (generation, step), can_send=can_send, moved=moved)
        if agreed.settled and not self._is_settled:
            self._is_settled = True
            memory.drop_former(self._owners)
        if agreed.failed or agreed.moved:
            refused = agreed.failed and under_way is not None and copier.refused == under_way[1]
            self._direct(memory, failed=refused)

    def _direct(self, memory: Memory, has_state: bool = False, failed: bool = False) -> list[Reach]:
        """To whom this rank sends from now on, and who sends here: where a holder has failed a rank, another has its turn. A
        collective of all ranks."""
        self._told = (memory.host, memory.port)
        reach = Reach(self._place.key, *self._told, memory.buffers > BUFFERS_LEAST, has_state, failed)
        reached = told_by_all(reach)
        if any(one.failed for one in reached):
            self._skips = [skip + one.failed for skip, one in zip(self._skips, reached, strict=True)]
            self._is_settled = False  # the former holder has an older replica, for as long as that is needed
        rank, holders = dist.get_rank(), [holder_of(at, self._nodes, self._skips[at]) for at in range(len(reached))]
        holder, self._peer = holders[rank] if self._count else None, None
        if holder is not None and reached[holder].port and reach.can_send:
            there = reached[holder]
            self._peer = Peer(host=there.host, port=there.port, secret=self.secret, owner=self._place.key)
        self._owners = [reached[owner].key for owner, other in enumerate(holders) if other == rank and self._count]
        return reached

    def gathered(self, copier: Copier) -> list[Kept]:
        """All that any keeper of the gang holds. A collective of all ranks."""
        self._base = None
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

    def recall(self, copier: Copier, kept: list[Kept], at: Moment, buffers: int) -> Recalled:
        """See Snapshots.recall."""
        self._base = None
        told = told_by_all(self._brought(copier, kept, at, buffers))
        if error := next((error for error, _ in told if error), ""):
            _log.warning("the state after step %d cannot be had from memory: %s", at.step, error)
            return "gone"
        if not all(is_here for _, is_here in told):
            return "elsewhere"
        keep = safest(kept, at)
        self._base = (at.generation, at.step), (keep.generation, keep.step)
        return "here"

    def _brought(self, copier: Copier, kept: list[Kept], at: Moment, buffers: int) -> tuple[str, bool]:
        """Why this place has no part of it, or ''; and whether it lies in the memory that the place has now."""
        found = find(kept, at, dist.get_rank(), self._place)
        assert found is not None
        try:
            if found.holder == self._place.key and not found.is_replica:
                memory = copier.find()
                return "", memory is not None and _is_there(memory, (at.generation, at.step))
            if not found.port:
                raise NotFound("replica", at.step, f"slot {found.slot} of {found.node} takes no calls")
            copier.bring(peer_of(found, self.secret), at.step, buffers, at.generation)
        except PhalanxError as error:
            return f"rank {dist.get_rank()}: {error.sentence()}", False
        what = "a replica" if found.is_replica else "the memory"
        _log.info("rank %d has the state after step %d from %s in slot %d", dist.get_rank(), at.step, what, found.slot)
        return "", True

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
        if self._peer is not None and step == self._rounds.next_step:
            memory.replicate(step, self._peer, keeps=True, besides=self._rounds.kept)


def _is_there(memory: Memory, version: Version) -> bool:
    """Sealed, and the youngest of its step."""
    generation, step = version
    return step in memory.sealed() and memory.seal_of(step).generation == generation


def _host() -> str:
    """Of this node, as the others see it: also while there are none, since keepers go on where they first listened."""
    try:
        return address_towards(os.environ.get("MASTER_ADDR", "") or LOCAL)
    except OSError:  # nor does this machine's own name lead anywhere
        return LOCAL
