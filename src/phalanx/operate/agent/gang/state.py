"""What the coordinator of a gang knows. Nouns only; `advance` moves them by `events`.

A *member* is one process of the gang, numbered for ever; a *slot* is a place on a node with its device, there for ever, and has at
most one member. A *generation* is one set of process groups: its *ranks* are members that have slots, counted in their order, so a
gang that does without some slots counts its ranks anew. Times are milliseconds of one clock that never goes back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from phalanx.core.timeouts import Timeouts

FAILURES_MAX: Final = 3
"""Generations that may fail one after another without a step beyond what was reached before; the next fault ends the gang."""

SPARE_FAILURES_MAX: Final = 3
"""Spares that may die between two generations. A gang that needs one is then over; another tries again after a while."""

SHUT_MS: Final = 30_000
SHUT_MS_MAX: Final = 3_600_000
"""A slot in which two processes one after another fell before the gang had made a step with them stays empty for so long, if the
gang can do without; twice as long each further time, up to the latter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What does not change. world_size: of the whole gang. spares: warm processes to hold beside the ranks, on each node. nodes: by
    slot, the node that it is a place of; () where all are of node 0, which has the coordinator. sizes: how many ranks the gang may
    have; all in any case."""

    world_size: int
    spares: int
    timeouts: Timeouts
    nodes: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    def node_of(self, slot: int) -> int:
        return self.nodes[slot] if self.nodes else 0

    @property
    def all_nodes(self) -> tuple[int, ...]:
        return tuple(sorted({self.node_of(slot) for slot in range(self.world_size)}))

    def size_for(self, count: int) -> int | None:
        """The largest that so many slots with processes can make; None when they are too few."""
        return max((size for size in (*self.sizes, self.world_size) if size <= count), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place on a node with its device. strikes: processes that fell in it one after another before the gang had made a step with
    them; until shut_until_ms it is left empty, if the gang can do without it."""

    strikes: int = 0
    shut_until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One live process, of `node`. slot: None for a spare. rank: in the present generation, or in the one that
    is over while the next is not there; None for who waits beside it. here: it is in no generation and wants the next. settled: it
    can train in the present one. step, mark: where its main thread is, the optimiser step of the whole run and the place in it.
    heard_ms: of its last sign of life; moved_ms: of its main thread's last move. killed_ms: when it was told to be killed."""

    slot: int | None
    started_ms: int
    node: int = 0
    rank: int | None = None
    here: bool = False
    settled: bool = False
    step: int = 0
    mark: int = 0
    heard_ms: int = 0
    moved_ms: int = 0
    killed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Gathering:
    """The last generation is over, or none was yet: the next one starts when enough slots have a member that is here. until_ms:
    None before the first generation, whose processes start like any job's. since_ms: of the fault. why: what it was.
    spares_until_ms: until then a spare that is still starting is waited for, though the gang could go on without it. planned: there
    was no fault, the gang grows."""

    until_ms: int | None
    since_ms: int
    why: str
    spares_until_ms: int | None = None
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Forming:
    """Members build their groups and take up their state. until_ms: None in the first generation: how long a job takes to load what
    it begins with is nobody's to bound."""

    until_ms: int | None
    since_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Training:
    """All members of the generation have settled, at since_ms. looked_ms: when it was last looked whether something is to be
    started or the gang can grow."""

    since_ms: int
    looked_ms: int


@dataclass(frozen=True, slots=True)
class Resting:
    """The gang trains and will grow: its ranks were asked to come out after a step. until_ms: then they are told to, unless one of
    them has moved since."""

    until_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Over:
    """The gang ends as one without a coordinator does; nothing moves any more."""

    why: str


Phase = Gathering | Forming | Training | Resting | Over


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """generation: of the last one that was started, 0 before. finished: members that have done all there is to do. failures:
    generations that failed one after another. spares_after_ms: no process is started before, since too many died. best_step: the
    furthest that any member had come when the last generation ended. proven: all ranks of the present one have come further.
    gone: nodes that were lost, and with them every process there; the gang has let go of them and starts nothing there again."""

    rules: Rules
    phase: Phase
    members: Mapping[int, Member]
    slots: tuple[Slot, ...]
    next_member: int
    generation: int = 0
    finished: bool = False
    failures: int = 0
    spare_failures: int = 0
    spares_after_ms: int = 0
    best_step: int = 0
    proven: bool = False
    gone: frozenset[int] = frozenset()

    def in_slot(self, slot: int) -> int | None:
        """Its member's number."""
        return next((number for number, member in self.members.items() if member.slot == slot), None)

    @property
    def holders(self) -> dict[int, Member]:
        """Members that have a slot."""
        return {number: member for number, member in self.members.items() if member.slot is not None}

    @property
    def ranks(self) -> dict[int, Member]:
        """Members of the present generation, or of the one that is just over."""
        return {number: member for number, member in self.members.items() if member.rank is not None}

    @property
    def spares(self) -> dict[int, Member]:
        """Members that can be given a slot, now or once they are here."""
        free = {number: one for number, one in self.members.items() if one.slot is None}
        return {number: one for number, one in free.items() if one.killed_ms is None}

    @property
    def empty_slots(self) -> list[int]:
        """Those that a process can be given."""
        taken = {member.slot for member in self.members.values()}
        slots = range(self.rules.world_size)
        return [slot for slot in slots if slot not in taken and self.rules.node_of(slot) not in self.gone]

    def open_slots(self, now_ms: int) -> list[int]:
        """Empty ones in which a process may be expected to live."""
        return [slot for slot in self.empty_slots if now_ms >= self.slots[slot].shut_until_ms]


def first(rules: Rules, now_ms: int) -> State:
    """Members 0 to world_size - 1 have just been started, each in the slot of its number."""
    fresh = Member(slot=None, started_ms=now_ms, heard_ms=now_ms, moved_ms=now_ms)
    members = {number: replace(fresh, slot=number, node=rules.node_of(number)) for number in range(rules.world_size)}
    slots = (Slot(),) * rules.world_size
    phase = Gathering(None, now_ms, "")
    return State(rules=rules, phase=phase, members=members, slots=slots, next_member=rules.world_size)
