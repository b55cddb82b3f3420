"""What the coordinator of a gang knows, what it hears, and what it does. Nouns only; `advance` moves them.

A *member* is one process of the gang, numbered for ever; a *slot* is a rank. A *generation* is one set of process groups: each slot
has exactly one member in it. Times are milliseconds of one clock that never goes back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from phalanx.core.timeouts import Timeouts

FAILURES_MAX: Final = 3
"""Generations that may fail one after another without a step beyond what was reached before; the next fault ends the gang."""

SPARE_FAILURES_MAX: Final = 3
"""Spares that may die between two generations; after that there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What does not change. spares: warm processes to hold beside the ranks, on each node. nodes: by slot, the node that it is a
    place of; () where all are of node 0, which has the coordinator."""

    world_size: int
    spares: int
    timeouts: Timeouts
    nodes: tuple[int, ...] = ()

    def node_of(self, slot: int) -> int:
        return self.nodes[slot] if self.nodes else 0

    @property
    def all_nodes(self) -> tuple[int, ...]:
        return tuple(sorted({self.node_of(slot) for slot in range(self.world_size)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One live process, of `node`. slot: None for a spare. here: it is in no generation and wants the next. settled: it can train
    in the present one. step, mark: where its main thread is, the optimiser step of the whole run and the place in it.
    heard_ms: of its last sign of life; moved_ms: of its main thread's last move. killed_ms: when it was told to be killed."""

    slot: int | None
    started_ms: int
    here: bool = False
    settled: bool = False
    step: int = 0
    mark: int = 0
    heard_ms: int = 0
    moved_ms: int = 0
    killed_ms: int | None = None
    node: int = 0


@dataclass(frozen=True, slots=True)
class Gathering:
    """The last generation is over, or none was yet: the next one starts when every slot has a member that is here. until_ms: None
    before the first generation, whose processes start like any job's. since_ms: of the fault. why: what it was."""

    until_ms: int | None
    since_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Forming:
    """Members build their groups and take up their state. until_ms: None in the first generation: how long a job takes to load what
    it begins with is nobody's to bound."""

    until_ms: int | None
    since_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Training:
    """All members of the generation have settled."""


@dataclass(frozen=True, slots=True)
class Over:
    """The gang ends as one without a coordinator does; nothing moves any more."""

    why: str


Phase = Gathering | Forming | Training | Over


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """generation: of the last one that was started, 0 before. finished: members that have done all there is to do. failures:
    generations that failed one after another. best_step: the furthest that any member had come at the last fault. gone: nodes that
    were lost, and with them every process there; nothing is started on them."""

    rules: Rules
    phase: Phase
    members: Mapping[int, Member]
    next_member: int
    generation: int = 0
    finished: bool = False
    failures: int = 0
    spare_failures: int = 0
    best_step: int = 0
    gone: frozenset[int] = frozenset()

    def in_slot(self, slot: int) -> int | None:
        """Its member's number."""
        return next((number for number, member in self.members.items() if member.slot == slot), None)

    @property
    def holders(self) -> dict[int, Member]:
        """Members that have a slot."""
        return {number: member for number, member in self.members.items() if member.slot is not None}

    @property
    def empty_slots(self) -> list[int]:
        taken = {member.slot for member in self.members.values()}
        return [slot for slot in range(self.rules.world_size) if slot not in taken]


@dataclass(frozen=True, slots=True)
class Here:
    """A process is in no generation, or is out of `after`, and wants the next."""

    member: int
    after: int = 0


@dataclass(frozen=True, slots=True)
class Settled:
    """It can train in that generation."""

    member: int
    generation: int


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life, and where its main thread is."""

    member: int
    step: int = 0
    mark: int = 0


@dataclass(frozen=True, slots=True)
class Died:
    """A process is gone. how: in words. replaceable: it was ended by a signal that is no polite request; one that gave an exit
    code of its own would give it again."""

    member: int
    how: str
    replaceable: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    """A process has done all there is to do, and ended well."""

    member: int


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Nothing is heard of that node any more, or somebody who knows says that it is lost. Whatever still lives there is out of the
    gang: its shim ends it, and the generation fences what it would commit. why: in words, after the node's number."""

    node: int
    why: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


OfMember = Here | Settled | Beat | Died | Finished
Event = OfMember | NodeLost | Ticked


@dataclass(frozen=True, slots=True)
class Start:
    """Start a spare process under that number, on that node."""

    member: int
    node: int = 0


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL: its end is then heard of as any other."""

    member: int
    why: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Tell the members of that generation that it is over."""

    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class Go:
    """A generation starts. `members`: by slot. why, since_ms: of the fault before it, '' for the first generation."""

    generation: int
    members: tuple[int, ...]
    why: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class End:
    """End the whole gang. interrupted: a node was lost, by which no restart is used up."""

    why: str
    interrupted: bool = False


Action = Start | Kill | Leave | Go | End


def first(rules: Rules, now_ms: int) -> State:
    """Members 0 to world_size - 1 have just been started, each in the slot of its number."""
    fresh = Member(slot=None, started_ms=now_ms, heard_ms=now_ms, moved_ms=now_ms)
    members = {number: replace(fresh, slot=number, node=rules.node_of(number)) for number in range(rules.world_size)}
    return State(rules=rules, phase=Gathering(None, now_ms, ""), members=members, next_member=rules.world_size)
