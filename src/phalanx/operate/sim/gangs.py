"""Simulated gangs of several nodes that recover inside, as far as the control plane can see: `operate.agent.gang` in each shim.

The first node's shim leads. Shims hear of each other unless one is dead or its node off the network; who is not heard of for
NODE_MS is lost to the other. A rank's death and its replacement inside a node are nothing that the control plane sees, and are left
out: here such a rank fails as any.
"""

from typing import TYPE_CHECKING, Final

from phalanx.core.ids import AttemptId
from phalanx.core.timeouts import Timeouts

if TYPE_CHECKING:
    from phalanx.operate.sim.shim import SimShim

NODE_MS: Final = Timeouts().node_ms
MEET_MS: Final = Timeouts().meet_ms
UNMET_MS: Final = Timeouts().unmet_ms
LOOK_MS: Final = 1_000

Gangs = dict[AttemptId, dict[int, "Part"]]
"""Of one cluster: each attempt's parts, by the node's rank in the gang."""


class Part:
    """One node's part, in its shim. without: nodes without which the gang goes on, known to the first. over: its ranks have all
    ended, and not by a loss."""

    def __init__(self, shim: "SimShim", gangs: Gangs) -> None:
        self.shim = shim
        self.over = False
        self.without: set[int] = set()
        self._lost_ones: set[int] = set()  # nobody waits for them, also while ranks are being ended
        launch = shim.launch
        assert launch.recovery is not None
        self._recovery, self._rank = launch.recovery, launch.node_rank
        self._parts = gangs.setdefault(launch.attempt, {})
        self._parts[self._rank] = self
        self._heard_ms: dict[int, int] = {}
        self._all_run = False
        self._meet_until_ms = shim.now_ms + UNMET_MS
        if self._rank == 0:
            self._tell()
        self._look()

    def give_up(self, node_rank: int) -> None:
        """The gang goes on without that node where the job allows it, or is interrupted."""
        if self._rank != 0 or node_rank in self._lost_ones:
            return
        self._lost_ones.add(node_rank)
        if self.shim.is_told:
            return
        self.without.add(node_rank)
        left = sum(count for rank, count in enumerate(self._recovery.ranks) if rank not in self.without)
        if self._met and any(size <= left for size in self._recovery.sizes):
            self._tell()
        else:
            self.shim.interrupt(f"node {node_rank} was lost")

    def all_started(self) -> None:
        """Nodes that have not come yet have MEET_MS from the first time on that this is heard."""
        if self._rank == 0 and self._awaits and not self._all_run:
            self._all_run, self._meet_until_ms = True, self.shim.now_ms + MEET_MS

    def told(self, grace_ms: int) -> None:
        """The first node's ranks are being ended, and with them all that it reaches."""
        if self._rank == 0:
            for rank, other in list(self._parts.items()):
                if rank not in self.without and self._reaches(other):
                    other.shim.stop(grace_ms)

    @property
    def waits_for_others(self) -> bool:
        """The first node's shim stays until the others have ended, or are lost."""
        others = ((rank, part) for rank, part in self._parts.items() if rank != 0 and rank not in self._lost_ones)
        return self._rank == 0 and any(rank in self._heard_ms and not part.over for rank, part in others)

    @property
    def _met(self) -> bool:
        """Whether the gang formed, without which nobody can be done without."""
        return len(self._heard_ms) == len(self._recovery.ranks) - 1

    @property
    def _awaits(self) -> tuple[int, ...]:
        """Nodes that never came."""
        known = self._heard_ms.keys() | self._lost_ones
        return tuple(rank for rank in range(1, len(self._recovery.ranks)) if rank not in known)

    def _tell(self) -> None:
        self.shim.gang_stands(tuple(sorted(self.without)), self._awaits)

    def _reaches(self, other: "Part") -> bool:
        return other is not self and not other.shim.dead and self.shim.on_network and other.shim.on_network

    def _look(self) -> None:
        if self.shim.dead or self.over:
            return
        now_ms = self.shim.now_ms
        for rank, other in list(self._parts.items()):
            if rank == self._rank or 0 not in (rank, self._rank) or rank in self._lost_ones or other.over:
                continue
            if self._rank in other.without and self._reaches(other):
                self.shim.interrupt("this node is out of its gang")
            elif self._reaches(other):
                is_first, self._heard_ms[rank] = rank not in self._heard_ms, now_ms
                if is_first and self._rank == 0:
                    self._tell()
            elif now_ms - self._heard_ms.get(rank, now_ms) >= NODE_MS:
                self._lost(rank)
        if now_ms >= self._meet_until_ms and self._rank == 0 and self._awaits:
            self.shim.interrupt(f"node {self._awaits[0]} never reached the gang's first node")
        elif now_ms >= self._meet_until_ms and self._rank != 0 and 0 not in self._heard_ms:
            self.shim.interrupt("it never reached the gang's first node")
        self.shim.end_if_over()
        self.shim.after(LOOK_MS, self._look)

    def _lost(self, rank: int) -> None:
        if self._rank == 0:
            self.give_up(rank)
        else:
            self.shim.interrupt("its gang's coordinator was not heard of")
