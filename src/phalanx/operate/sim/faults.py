"""What goes wrong, and when: every fault is drawn from the seed, and each seed likes some kinds better than others."""

import sqlite3
from collections import Counter
from dataclasses import dataclass, fields
from random import Random
from typing import Final

from phalanx.core.errors import PhalanxError


class Crash(BaseException):
    """The process ends here, as by SIGKILL. No handler of the code under test may stop it."""


class DiskFull(PhalanxError):
    """A node's disk takes nothing now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """How likely each fault is in one history. 0 switches a kind off: histories with few kinds find what a mixture hides.

    Per point or message: crash (of the control plane, at each point it passes), database (an error at a transaction's beginning
    or commit), lost, doubled, reordered, delayed (of messages).
    Per second of chaos: the rest. cut: a node's network fails in one direction or both. breaks: a connection. agent_dies, reboots,
    shim_dies. pauses: the leader stands still, perhaps while another takes over. jumps: somebody sets a wall clock. disk_full: a
    node's. ahead: an agent has seen a higher epoch, as after the database was restored from a backup. lies: of a lying node's
    messages, instead.
    """

    crash: float = 0.0
    database: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0
    reordered: float = 0.0
    delayed: float = 0.0
    cut: float = 0.0
    breaks: float = 0.0
    agent_dies: float = 0.0
    reboots: float = 0.0
    shim_dies: float = 0.0
    pauses: float = 0.0
    jumps: float = 0.0
    disk_full: float = 0.0
    ahead: float = 0.0
    lies: float = 0.0


CALM: Final = Swarm()
WORST: Final = Swarm(
    crash=0.01,
    database=0.02,
    lost=0.02,
    doubled=0.05,
    reordered=0.05,
    delayed=0.05,
    cut=0.06,
    breaks=0.04,
    agent_dies=0.03,
    reboots=0.03,
    shim_dies=0.02,
    pauses=0.03,
    jumps=0.02,
    disk_full=0.02,
    ahead=0.004,
    lies=0.3,
)
"""As likely as it gets, of each kind."""


def draw_swarm(random: Random) -> Swarm:
    """Each kind is off in two fifths of all histories, else up to its worst."""
    return Swarm(
        **{
            kind.name: getattr(WORST, kind.name) * random.choice((0.3, 1.0)) if random.random() < 0.6 else 0.0
            for kind in fields(Swarm)
        }
    )


class Faults:
    """The injector. `swarm` is what is likely now; `heal` switches everything off for good. `struck`: how often each kind did."""

    def __init__(self, random: Random, swarm: Swarm) -> None:
        self.random = random
        self.swarm = swarm
        self.struck: Counter[str] = Counter()

    def heal(self) -> None:
        self.swarm = CALM

    def happens(self, kind: str, share: float = 1.0) -> bool:
        """Whether that kind of fault strikes now, `share` of its likelihood where that is asked more often than it counts. Draws
        only for what can happen, so that histories without a kind of fault are not changed by it."""
        likelihood = getattr(self.swarm, kind) * share
        strikes: bool = likelihood > 0 and self.random.random() < likelihood
        self.struck[kind] += strikes
        return strikes

    def crash_point(self, where: str) -> None:
        """The control plane passes here; maybe no further. Raises Crash."""
        if self.happens("crash"):
            raise Crash(where)

    def database_point(self, where: str) -> None:
        """A transaction begins, is about to be committed, or just was. Raises Crash, or what the driver raises."""
        self.crash_point(f"database: {where}")
        if self.happens("database"):
            raise sqlite3.OperationalError(f"disk I/O error ({where})")
