"""Why a job waits: one dominant typed reason with numbers, decided by the scheduler, shown to people."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field

from phalanx.core.ids import JobId
from phalanx.core.units import MILLI, show_amount, utc_day, utc_minute, utc_second

FIRM: Final = "a job that is not preemptible may not use more"
"""Why such a job may not have what a preemptible one would borrow."""

_PLURAL: Final = re.compile(r"\b(device|slot|node|cpu)s\b")


@dataclass(frozen=True, slots=True)
class NeverFits:
    """No node, however idle, could hold one node's share of the gang, or there are too few such nodes. `largest` is 'none' for
    something that nodes have or have not: `asked` is then the number of nodes."""

    resource: str
    asked: str
    largest: str
    change: str
    kind: Literal["never_fits"] = field(default="never_fits", kw_only=True)

    def sentence(self) -> str:
        if self.largest == "none":
            return f"never fits: no node can do what {self.resource} asks for; {self.change}"
        asks = f"asks for {_counted(self.asked, self.resource)}"
        return f"never fits: {asks}, the largest possible is {self.largest}; {self.change}"


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The gang would fit an idle fleet, but not what is free now: too few devices, or not enough of them on one node. `fenced`: on
    which ranks of attempts that were given up still live. `closed`: of nodes that are away or drained. `exposed`: whether some
    of these are closed since teams do not trust each other and they do not keep jobs apart. `milli`: thousandths of one
    device, when it asks for a share."""

    asked: int
    free: int
    held: int
    fenced: int = 0
    closed: int = 0
    milli: int = 0
    exposed: bool = False
    kind: Literal["no_room"] = field(default="no_room", kw_only=True)

    def sentence(self) -> str:
        scattered = " but not in shares that it can use" if self.free >= self.asked else ""
        fenced = f", {self.fenced} not yet let go of by ranks that were given up" if self.fenced else ""
        are = "away, drained, or do not keep jobs of several teams apart (`phalanx node ls`)" if self.exposed else "away or drained"
        closed = f", {self.closed} on nodes that are {are}" if self.closed else ""
        asks = f"{self.milli / MILLI:g} of a device" if self.milli else f"{self.asked} at once"
        free = f"asks for {asks}, {self.free} free{scattered}"
        return f"waits for devices: {free}, {self.held} held by running jobs{fenced}{closed}"


@dataclass(frozen=True, slots=True)
class Behind:
    """It would fit now, but the freed devices are kept for the job at the head of the line."""

    head: JobId
    position: int
    kind: Literal["behind"] = field(default="behind", kw_only=True)

    def sentence(self) -> str:
        return f"would fit, but the devices are kept for {self.head}, which stands before it"


@dataclass(frozen=True, slots=True)
class NoNodes:
    """No node is connected, or none has reported since the control plane started; or all that are were drained. exposed: nodes
    that are closed since teams do not trust each other and they do not keep jobs apart."""

    known: int
    drained: int = 0
    exposed: int = 0
    kind: Literal["no_nodes"] = field(default="no_nodes", kw_only=True)

    def sentence(self) -> str:
        if self.exposed:
            fix = "start their agents with --isolation uid, or say that the teams do: `phalanx team organisation NAME --trusting`"
            does = "does" if self.exposed == 1 else "do"
            of = f"{self.exposed} of {self.known} known {does} not keep jobs apart"
            return f"waits for nodes: {of}, and teams here do not trust each other; {fix}"
        if self.drained:
            are = "is" if self.drained == 1 else "are"
            return (
                f"waits for nodes: {self.drained} of {self.known} known {are} drained; `phalanx node undrain NODE` opens one again"
            )
        return f"waits for nodes: none of the {self.known} known is connected; `phalanx up` starts this machine's"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Its last `attempts` each ended within `within_ms`, the last one as `detail` says, so the next one is put off."""

    wait_ms: int
    attempts: int
    within_ms: int
    detail: str
    kind: Literal["backoff"] = field(default="backoff", kw_only=True)

    def sentence(self) -> str:
        ended = "the last attempt ended" if self.attempts == 1 else f"the last {self.attempts} attempts each ended"
        return f"restarts in {_seconds(self.wait_ms)}: {ended} within {_seconds(self.within_ms)}; {self.detail}"


@dataclass(frozen=True, slots=True)
class Geometry:
    """Enough devices are free, but not where the gang can use them. `largest`: devices of the largest gang of its parts that would
    fit now. tier: the one that it must lie in, or ''. each: devices of a part, on one node. short: what else the nodes lack. most:
    devices free on one node, where no node has `each`."""

    asked: int
    free: int
    largest: int
    tier: str = ""
    each: int = 1
    short: Literal["", "cpus", "memory"] = ""
    most: int = 0
    kind: Literal["geometry"] = field(default="geometry", kw_only=True)

    def sentence(self) -> str:
        only = f"of the {self.asked} asked for at once only {self.largest}"
        if self.short:
            what = "CPU cores" if self.short == "cpus" else "host memory"
            return f"waits for {what}: {self.free} devices are free, but {only} are on nodes with enough {what} left"
        if 0 < self.most < self.each:
            none = f"no node has {self.each} free; the most on one is {self.most}"
            return f"waits for devices that lie together: {self.free} are free, but {none}"
        if self.tier:
            return f"waits for devices that lie together: {self.free} are free, but {only} in one {self.tier}"
        parts = f" lie {self.each} on a node" if self.each > 1 else " can be used"
        return f"waits for devices that lie together: {self.free} are free, but {only}{parts}"


@dataclass(frozen=True, slots=True)
class OverQuota:
    """The queue has its guaranteed devices, and may not borrow more now: `because`. type '*': of all that its quota does not name.
    for_ever: whatever others lend, such a job never borrows. unpromised: the queue is guaranteed nothing, and the job may
    only use what nobody is: `quota` is all of that, `used` what is used of it."""

    queue: str
    type: str
    quota: int
    used: int
    asked: int
    because: str
    for_ever: bool = False
    unpromised: bool = False
    kind: Literal["over_quota"] = field(default="over_quota", kw_only=True)

    def sentence(self) -> str:
        if self.unpromised:
            return f"waits for quota: {self._nobodys()}, this asks for {self.asked}; {self.because}"
        return (
            f"waits for quota: {self.queue} is guaranteed {_many(self.quota, self.type)} and uses {self.used}, "
            f"this asks for {self.asked}; {self.because}"
        )

    def _nobodys(self) -> str:
        """'4 cpu devices are guaranteed to nobody, 1 of them is used'."""
        if self.quota == 1:
            return f"{_many(1, self.type)} is guaranteed to nobody, and it is {'used' if self.used else 'free'}"
        return (
            f"{_many(self.quota, self.type)} are guaranteed to nobody, {self.used} of them {'is' if self.used == 1 else 'are'} used"
        )


@dataclass(frozen=True, slots=True)
class OverLimit:
    """The queue, or one that it is part of, would hold more than its limit; or `because` says what else keeps the rest of it."""

    queue: str
    type: str
    limit: int
    used: int
    asked: int
    because: str = ""
    kind: Literal["over_limit"] = field(default="over_limit", kw_only=True)

    def sentence(self) -> str:
        limit = f"its limit is {_many(self.limit, self.type)}"
        because = f"; {self.because}" if self.because else ""
        return f"waits for {self.queue}: {limit}, it uses {self.used}, this asks for {self.asked}{because}"


@dataclass(frozen=True, slots=True)
class OverBudget:
    """The queue, or one that it is part of, has spent its budget of the period. resets_ms: Unix time; None for one that never
    does."""

    queue: str
    unit: Literal["GPU-hours", "USD"]
    budget: float
    spent: float
    resets_ms: int | None
    kind: Literal["over_budget"] = field(default="over_budget", kw_only=True)

    def sentence(self) -> str:
        again = "" if self.resets_ms is None else f"; a new period begins on {utc_day(self.resets_ms)}"
        return (
            f"waits for budget: {self.queue} has spent {show_amount(self.spent)} of {show_amount(self.budget)} {self.unit}{again}"
        )


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Jobs that must have succeeded before have not: `unmet` still may, `failed` never will. stuck: of `unmet` those that never
    start themselves."""

    unmet: tuple[JobId, ...]
    failed: tuple[JobId, ...] = ()
    stuck: tuple[JobId, ...] = ()
    kind: Literal["dependencies"] = field(default="dependencies", kw_only=True)

    def sentence(self) -> str:
        if self.failed:
            retry = "that one" if len(self.failed) == 1 else "them"
            return f"never starts: {named(self.failed)}, which must succeed before it, did not; retry {retry}, or cancel this"
        if self.stuck:
            starts = "starts" if len(self.stuck) == 1 else "start"
            return f"never starts, since {named(self.stuck)} never {starts}; `phalanx why {self.stuck[0]}` says why not"
        return f"waits for {named(self.unmet)} to succeed"


@dataclass(frozen=True, slots=True)
class DependencyCycle:
    """It must succeed before itself: each of `jobs`, the first being itself, waits for the next, and the last for the first."""

    jobs: tuple[JobId, ...]
    kind: Literal["dependency_cycle"] = field(default="dependency_cycle", kw_only=True)

    def sentence(self) -> str:
        circle = " which waits for ".join(f"{job}," for job in (*self.jobs[1:], self.jobs[0])).rstrip(",")
        return f"never starts: it waits for {circle}; cancel one of them"


@dataclass(frozen=True, slots=True)
class ArrayFull:
    """As many jobs of its array run as may at once."""

    array: str
    parallel: int
    kind: Literal["array_full"] = field(default="array_full", kw_only=True)

    def sentence(self) -> str:
        return f"waits for its array: {self.array} may have {self.parallel} running at once, and has"


@dataclass(frozen=True, slots=True)
class OutsideWindow:
    """It starts only in certain times. opens_ms: Unix time of the next; None when the policy has no such window."""

    window: str
    opens_ms: int | None
    kind: Literal["outside_window"] = field(default="outside_window", kw_only=True)

    def sentence(self) -> str:
        if self.opens_ms is None:
            return f"waits for the window {self.window!r}, which the policy does not have; `phalanx policy show` lists them"
        return f"waits for the window {self.window!r}, which opens at {utc_minute(self.opens_ms)}"


@dataclass(frozen=True, slots=True)
class MakingRoom:
    """Running gangs were asked to let go of devices for it, and have yet to."""

    victims: tuple[JobId, ...]
    devices: int
    kind: Literal["making_room"] = field(default="making_room", kw_only=True)

    def sentence(self) -> str:
        if not self.victims:
            return f"starts as soon as {_many(self.devices)} kept for it {'comes' if self.devices == 1 else 'come'} free"
        let = "lets" if len(self.victims) == 1 else "let"
        return f"starts as soon as {named(self.victims)} {let} go of {_many(self.devices)} kept for it"


@dataclass(frozen=True, slots=True)
class Kept:
    """It would fit now, but the devices are kept: for a booking, for repairs (`spares`), or for spot to come. until_ms: Unix
    time."""

    what: str
    until_ms: int | None
    kind: Literal["kept"] = field(default="kept", kw_only=True)

    def sentence(self) -> str:
        until = "" if self.until_ms is None else f" until {utc_second(self.until_ms)}"
        return f"would fit, but the devices are kept for {self.what}{until}"


def _counted(asked: str, resource: str) -> str:
    """'8 H100 devices on a node', '1 node with H100:8', '3.0 GiB of memory on a node'."""
    if resource.startswith("memory"):
        return f"{asked} of {resource}"
    return f"{asked} {resource if asked != '1' else _PLURAL.sub(lambda word: word[1], resource, count=1)}"


def named(jobs: Sequence[JobId]) -> str:
    """The first three, and how many more."""
    return ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")


def _many(count: int, kind: str = "*") -> str:
    """'1 device', '2 H100 devices'."""
    return f"{count} {'' if kind == '*' else f'{kind} '}device{'' if count == 1 else 's'}"


def _seconds(ms: int) -> str:
    """Whole seconds, upwards."""
    return f"{-(-max(0, ms) // 1000)}s"


Reason = Annotated[
    NeverFits
    | NoRoom
    | Behind
    | NoNodes
    | Backoff
    | Geometry
    | OverQuota
    | OverLimit
    | OverBudget
    | Dependencies
    | DependencyCycle
    | ArrayFull
    | OutsideWindow
    | MakingRoom
    | Kept,
    Field(discriminator="kind"),
]
