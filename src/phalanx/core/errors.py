"""One tree of errors in three kinds: the user's (says what to change), the world's (retry), a bug (crash loudly).

Every class is listed in docs/errors.md with its exit code; a tidy test holds the two together.
"""

from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """Exit codes of the `phalanx` command, as documented in docs/cli.md."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    TIMEOUT = 5
    BUG = 70
    DETACHED = 130


def shown(value: object) -> str:
    """What was given, as an error shows it. An error about a value must not fail on that value: Python writes out no number of over
    4,300 digits, and no nesting that is as deep as its stack."""
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return f"({type(value).__name__} too large to show)"


class PhalanxError(Exception):
    """Root of the tree."""

    exit_code: ClassVar[Exit] = Exit.BUG

    def sentence(self) -> str:
        """For people, as every command says it."""
        return str(self)


class UserError(PhalanxError):
    """Somebody can fix this by changing what they gave us: `field` had `value`; `fix` says what to change."""

    exit_code = Exit.BAD_INPUT

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field = field
        self.value = value
        self.fix = fix
        super().__init__(f"{field}: {fix}" if value is None else f"{field}: {shown(value)}: {fix}")

    def sentence(self) -> str:
        return f"{self.field}: {self.fix}" if self.value is None else f"{self.field} is {shown(self.value)}: {self.fix}"

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, object, str]]:
        """One error on one rank must reach the others whole."""
        return type(self), (self.field, self.value, self.fix)


class SpecError(UserError):
    """A job spec, or a file it names, is not acceptable."""


class DataError(UserError):
    """Input data, a data set or its manifest is not acceptable."""


class CheckpointError(UserError):
    """A checkpoint is damaged, incomplete, or belongs to something else."""


class SetupError(UserError):
    """This machine or home cannot do what was asked: a taken port, a read-only home, a missing extra."""


class NotFound(UserError):
    """Nothing has that name."""

    exit_code = Exit.NOT_FOUND


class Conflict(UserError):
    """The request is fine in itself and does not fit the present state."""


class Stale(Conflict):
    """What was to be changed is not any more as it was when it was read."""


class Unauthorized(UserError):
    """The token is missing, unknown, or may not do this."""


class Forbidden(Unauthorized):
    """The token is known, and whoever shows it may not do this."""


class WorldError(PhalanxError):
    """The outcome is unknown or the world is away; the same call may be made again."""

    exit_code = Exit.UNREACHABLE


class LinkDown(WorldError):
    """A node's agent cannot be reached, so what it did is unknown."""


class ServerUnreachable(WorldError):
    """The control plane does not answer. lost: it was sent something all the same, which it may have done."""

    def __init__(self, sentence: str, lost: bool = False) -> None:
        self.lost = lost
        super().__init__(sentence)


class StoreUnavailable(WorldError):
    """A database, a disk or an object store refused or vanished. Nothing changed, unless the message says this is not known."""


class RateLimited(WorldError):
    """Too much was asked in too short a time; nothing was done. retry_after_s: when the same call may be made again."""

    def __init__(self, sentence: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(sentence)


class WaitTimeout(PhalanxError):
    """A bounded wait ended before what it waited for."""

    exit_code = Exit.TIMEOUT


class Bug(PhalanxError):
    """A promise of ours is broken. Never caught to go on."""


class IllegalTransition(Bug):
    """A state met an event that cannot happen in it."""
