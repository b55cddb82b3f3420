"""The test of a fabric: what is asked, what its ranks say while it runs, and what was measured. Sizes in bytes, times in seconds,
rates in bytes a second."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.errors import DataError, SpecError

COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES_GPU: Final = (8 * 2**10, 128 * 2**10, 2**20, 8 * 2**20, 64 * 2**20, 512 * 2**20)
SIZES_CPU: Final = (4 * 2**10, 64 * 2**10, 2**20, 8 * 2**20)
SIZE_BYTES_MIN: Final = 4
SIZE_BYTES_MAX: Final = 8 * 2**30
SIZES_MAX: Final = 32
SECONDS_MAX: Final = 60.0
RANKS_HERE_MAX: Final = 64
SENT_BYTES_MAX: Final = 131_000
"""Linux takes 131,072 bytes of an environment variable (MAX_ARG_STRLEN of 32 pages), its name included; what starts a container may
put an option's name before it."""

REPORT: Final = "fabric-test.json"
"""The artifact of the job, and the file where one asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricAsked:
    """sizes: of messages; () is what suits the device. seconds: that each collective of each size on each tier may take. places:
    labels of nodes by the glob of their name, as a policy has them; later ones win. unplaced: they are left out, being too many."""

    collectives: tuple[str, ...] = COLLECTIVES
    sizes: tuple[int, ...] = ()
    seconds: float = 0.3
    pairs: bool = True
    places: tuple[tuple[str, Mapping[str, str]], ...] = ()
    unplaced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TierView:
    """Groups of ranks that were measured at the same time. hardware: what its links carry at most for each rank in one direction;
    None where nobody says. source: who does."""

    name: str
    num_groups: int
    num_ranks: int
    hardware_bytes_per_s: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointView:
    """One collective of one size in the groups of a tier. seconds: median over the repeats of the slowest group. bus: its bus
    bandwidth. part: of the hardware's rate. slowest: that group, '' where there is one."""

    tier: str
    collective: str
    num_ranks: int
    size_bytes: int
    seconds: float
    bus_bytes_per_s: float
    part: float | None = None
    slowest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostView:
    """A collective of n bytes in a group of `num_ranks` of this tier takes alpha_s + n * beta_s seconds; of the measured points the
    worst is off by `error` of itself."""

    tier: str
    collective: str
    num_ranks: int
    alpha_s: float
    beta_s: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowView:
    """Something that is slower than others of its kind. kind: gpu, node, rail or link. part: of what the others reach. evidence:
    the numbers, in words."""

    kind: str
    name: str
    part: float
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricReport:
    """All of a test. nodes: by their rank in the gang. pairs: of ranks that were measured. judged: those of them that had others of
    their kind to be compared with; None in a report of before it was counted. notes: what could not be told."""

    made_ms: int
    job: str
    backend: str
    device: str
    torch: str
    nodes: tuple[str, ...]
    num_ranks: int
    tiers: tuple[TierView, ...]
    points: tuple[PointView, ...]
    costs: tuple[CostView, ...]
    slow: tuple[SlowView, ...]
    pairs: int = 0
    notes: tuple[str, ...] = field(default=())
    judged: int | None = None


def checked(asked: FabricAsked) -> FabricAsked:
    """`asked` itself. Raises SpecError for what cannot be measured, which names the field."""
    for name in asked.collectives:
        if name not in COLLECTIVES:
            raise SpecError("collectives", name, f"write some of {','.join(COLLECTIVES)}")
    if not asked.collectives:
        raise SpecError("collectives", "", f"write some of {','.join(COLLECTIVES)}")
    if len(asked.sizes) > SIZES_MAX:
        raise SpecError("sizes", f"{len(asked.sizes)} sizes", f"give at most {SIZES_MAX}")
    for size in asked.sizes:
        if not SIZE_BYTES_MIN <= size <= SIZE_BYTES_MAX:
            raise SpecError("sizes", f"{size} bytes", "write sizes from 4 bytes to 8GiB")
    if not 0 < asked.seconds <= SECONDS_MAX:
        raise SpecError("seconds", asked.seconds, f"write a number above 0, at most {SECONDS_MAX:g}")
    return asked


def hyperparameters(asked: FabricAsked) -> dict[str, str]:
    """As its ranks are given it."""
    return {"asked": wire.dumps(FabricAsked, asked)}


def placed(asked: FabricAsked, rules: Iterable[Mapping[str, Any]], labels: Iterable[str]) -> FabricAsked:
    """With what a policy's `nodes` say of where nodes lie, or without where that is more than can be handed to ranks."""
    found = replace(asked, places=places_of(rules, labels))
    return found if sent_bytes(found) <= SENT_BYTES_MAX else replace(asked, unplaced=True)


def sent_bytes(asked: FabricAsked) -> int:
    """Of the environment variable that carries it, which is JSON in JSON."""
    return len(f"PHALANX_HYPERPARAMETERS={json.dumps(hyperparameters(asked))}".encode())


def places_of(rules: Iterable[Mapping[str, Any]], labels: Iterable[str]) -> tuple[tuple[str, Mapping[str, str]], ...]:
    """Of a policy's `nodes` what says where nodes lie."""
    found = []
    for rule in rules:
        kept = {name: str(rule["labels"][name]) for name in labels if name in (rule.get("labels") or {})}
        if kept:
            found.append((str(rule["match"]), kept))
    return tuple(found)


def place_of(node: str, places: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    """The labels of a node by its name."""
    found = dict[str, str]()
    for match, labels in places:
        if fnmatchcase(node, match):
            found |= labels
    return found


def read_report(text: str | bytes, name: str) -> FabricReport:
    """Raises DataError for what is no report."""
    try:
        report: FabricReport = wire.loads(FabricReport, text)
    except ValueError as error:
        raise DataError("FILE", name, f"is no result of `phalanx fabric test` ({error})") from error
    return report


_PROGRESS: Final = re.compile(r"fabric test: (\d+) of (\d+) done, next (.{1,200})")


def progress_line(done: int, total: int, what: str) -> str:
    """What rank 0 writes into its log."""
    return f"fabric test: {done} of {total} done, next {what}"


def read_progress(line: str) -> tuple[str, int, int] | None:
    """(what, done, total) of such a line, None of any other."""
    matched = _PROGRESS.search(line)
    return (matched[3], int(matched[1]), int(matched[2])) if matched else None
