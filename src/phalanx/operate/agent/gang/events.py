"""What a gang's coordinator hears, and what it does. Nouns only; see `state` for what they are about."""

from dataclasses import dataclass


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
class Rest:
    """Ask the members of that generation to come out after a step: the next one will be larger."""

    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Tell the members of that generation that it is over."""

    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class Go:
    """A generation starts. members, slots: by rank; ranks follow the order of slots. why, since_ms: of what ended the one before
    it, '' for the first generation. planned: that was no fault."""

    generation: int
    members: tuple[int, ...]
    slots: tuple[int, ...]
    why: str
    since_ms: int
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The gang has finished without these members: they need not wait any more."""

    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class End:
    """End the whole gang. interrupted: a node was lost, by which no restart is used up."""

    why: str
    interrupted: bool = False


Action = Start | Kill | Rest | Leave | Go | Dismiss | End
