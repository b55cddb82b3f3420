"""Faults planted on purpose: each must turn the simulation red, or it proves nothing. Patched in from here; the code under test has
no switch for them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from phalanx.core.devices import Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.messages import AttemptReport
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.fit import Fleet, fit
from phalanx.decide.scheduler.snapshot import PendingJob
from phalanx.operate.control import controller, leases, observed
from phalanx.operate.control.fences import Fences
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.store import Store
from phalanx.operate.control.world import World
from phalanx.record.telemetry.ledger.account import _Book
from phalanx.record.telemetry.ledger.categories import DRAINING


@dataclass(frozen=True, slots=True)
class Mutant:
    """`what` is wrong, the property that it must violate first, and the patch: `name` of `owner` is replaced by what `made` makes
    of it."""

    what: str
    violates: str
    owner: Any
    name: str
    made: Callable[[Any], Any]


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The mutant of that name is in the code meanwhile; '' plants nothing."""
    if not name:
        yield
        return
    mutant = MUTANTS[name]
    original = getattr(mutant.owner, mutant.name)
    setattr(mutant.owner, mutant.name, mutant.made(original))
    try:
        yield
    finally:
        setattr(mutant.owner, mutant.name, original)


def _forget_lost(hold_against: Callable[..., None]) -> Callable[..., None]:
    def forgetting(world: World, seen: Sightings, node: NodeId, reports: Sequence[AttemptReport], at_ms: int) -> None:
        before = dict(seen.reports)
        hold_against(world, seen, node, reports, at_ms)
        found = {about for about, report in seen.reports.items() if report.lost and before.get(about) != report}
        seen.reports = {
            about: before.get(about, report) for about, report in seen.reports.items() if about in before or about not in found
        }

    return forgetting


def _partial_gang(_: Any) -> Callable[..., tuple[str, Placement] | None]:
    def partial(job: PendingJob, kinds: Sequence[str], fleet: Fleet) -> tuple[str, Placement] | None:
        found = fit(job, kinds, fleet)
        return found if found or job.num_nodes == 1 else fit(replace(job, num_nodes=job.num_nodes - 1), kinds, fleet)

    return partial


def _no_fences(_: Any) -> Callable[[World, Sightings], Fences]:
    return lambda world, seen: {}


def _no_key(_: Any) -> Callable[[Store, str], JobId | None]:
    return lambda store, key: None


def _same_epoch(take_lead: Callable[[Store], int]) -> Callable[[Store], int]:
    first: dict[int, int] = {}  # of each store

    def reuse(store: Store) -> int:
        if id(store) not in first:
            first[id(store)] = take_lead(store)
        return first[id(store)]

    return reuse


def _leaking(add: Callable[[Any, str, int], None]) -> Callable[[Any, str, int], None]:
    return lambda book, category, duration_ms: add(book, category, duration_ms - (category == DRAINING and duration_ms > 0))


def _any_part(_: Any) -> Callable[..., bool]:
    return lambda attempt, reports: any(report is not None and report.phase == "ended" for report in reports)


def _whoever(_: Any) -> Any:
    return lambda store, epoch: store._writing()


def _impatient(note_lost: Callable[..., None]) -> Callable[..., None]:
    return lambda draft, seen, monotonic_ms, lease_ms, loss_ms, at_ms: note_lost(
        draft, seen, monotonic_ms, lease_ms, lease_ms, at_ms
    )


MUTANTS: Final[dict[str, Mutant]] = {
    "forget_lost": Mutant("a gang that its node lost is forgotten", "converges", observed, "_hold_against", _forget_lost),
    "partial_gang": Mutant(
        "a gang is started though a part is missing", "whole_gang", sys.modules[schedule.__module__], "fit", _partial_gang
    ),
    "zombie_gpu": Mutant(
        "devices are given away on which ranks of a lost gang live", "one_attempt_per_device", controller, "fences", _no_fences
    ),
    "double_apply": Mutant("a submit is applied again after a crash", "nothing_twice", Store, "job_of_key", _no_key),
    "epoch_reuse": Mutant("the next leader has its predecessor's number", "one_leader_an_epoch", Store, "take_lead", _same_epoch),
    "ledger_leak": Mutant("a millisecond of device time is in no category", "ledger_balances", _Book, "add", _leaking),
    "early_end": Mutant("a gang counts as over once one part is", "ended_is_ended", observed, "is_over", _any_part),
    "stale_leader": Mutant("a superseded leader writes", "only_the_leader_writes", Store, "_leading", _whoever),
    "short_lease": Mutant("a node is given up without the kill grace", "leases_hold", leases, "note_lost", _impatient),
}
"""The first six are asked for by name; the others hold the rest of the properties to account."""
