"""Faults planted on purpose: each must turn the simulation red, or it proves nothing. Patched in from here; the code under test has
no switch for them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import update

from phalanx.core.devices import WHOLE, Placement
from phalanx.core.errors import StoreUnavailable
from phalanx.core.events import AttemptEnded
from phalanx.core.ids import AttemptId, JobId, NodeId, attempt_id, job_id
from phalanx.core.messages import AttemptReport, StartRanks
from phalanx.core.records import ModelSaved
from phalanx.core.spec import JobSpec
from phalanx.decide.scheduler.plan import Plan
from phalanx.decide.scheduler.snapshot import Shape, Share
from phalanx.decide.scheduler.where.fleet import Fleet
from phalanx.operate.control import controller, effects, facts, leases, names, observed, planned, rows, snapshots, tables, verdict
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.fences import Fences
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.observed import Sightings
from phalanx.operate.control.rows import Commit
from phalanx.operate.control.store import Store
from phalanx.operate.control.taken import Taken
from phalanx.operate.control.world import AttemptRecord, JobRecord, World
from phalanx.operate.sim.agent import SimAgent
from phalanx.record.telemetry.ledger.account import _Book
from phalanx.record.telemetry.ledger.categories import DRAINING


@dataclass(frozen=True, slots=True)
class Mutant:
    """`what` is wrong, the property that it must violate first, and the patch: `name` of `owner` is replaced by what `made` makes
    of it. `seed`: where it showed when last looked for, if not in the first few; it is tried first, which saves time. `also`:
    another patch, where two places guard against the same."""

    what: str
    violates: str
    owner: Any
    name: str
    made: Callable[[Any], Any]
    seed: int = 0
    also: tuple[Any, str, Callable[[Any], Any]] | None = None


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The mutant of that name is in the code meanwhile; '' plants nothing."""
    if not name:
        yield
        return
    mutant = MUTANTS[name]
    patches = [(mutant.owner, mutant.name, mutant.made), *((mutant.also,) if mutant.also else ())]
    originals = [getattr(owner, attribute) for owner, attribute, _ in patches]
    for (owner, attribute, made), original in zip(patches, originals, strict=True):
        setattr(owner, attribute, made(original))
    try:
        yield
    finally:
        for (owner, attribute, _), original in zip(patches, originals, strict=True):
            setattr(owner, attribute, original)


def _forget_lost(hold_against: Callable[..., None]) -> Callable[..., None]:
    def forgetting(world: World, seen: Sightings, node: NodeId, reports: Sequence[AttemptReport], at_ms: int) -> None:
        before = dict(seen.reports)
        hold_against(world, seen, node, reports, at_ms)
        found = {about for about, report in seen.reports.items() if report.lost and before.get(about) != report}
        seen.reports = {
            about: before.get(about, report) for about, report in seen.reports.items() if about in before or about not in found
        }

    return forgetting


def _partial_gang(take: Callable[..., Placement]) -> Callable[..., Placement]:
    def partial(fleet: Fleet, shape: Shape, kind: str, rows: Sequence[int]) -> Placement:
        return take(fleet, shape, kind, rows[:-1] if len(rows) > 1 else rows)

    return partial


def _no_fences(_: Any) -> Callable[[World, Sightings], Fences]:
    return lambda world, seen: {}


def _no_key(_: Any) -> Callable[[Store, str], JobId | None]:
    return lambda store, key: None


def _same_epoch(take_lead: Callable[[Store], int]) -> Callable[[Store], int]:
    first = WeakKeyDictionary[Store, int]()

    def reuse(store: Store) -> int:
        if store not in first:
            first[store] = take_lead(store)
        return first[store]

    return reuse


def _own_count(_: Any) -> Callable[[Store], int]:
    leaders = WeakKeyDictionary[Store, int]()

    def count(store: Store) -> int:
        leaders[store] = leaders.get(store, 0) + 1
        with store._writing() as connection:
            connection.execute(update(tables.lead).values(epoch=leaders[store]))
        return leaders[store]

    return count


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


def _drained_too(_: Any) -> Callable[[World, Sightings, bool], frozenset[NodeId]]:
    return lambda world, seen, strangers: frozenset(node for node in seen.greeted if node in world.nodes and world.nodes[node].up)


def _once_more(again: Callable[..., bool]) -> Callable[..., bool]:
    def lenient(job: JobRecord, attempt: AttemptRecord, cause: object) -> bool:
        return again(replace(job, interruptions=job.interruptions + 1), attempt, cause)

    return lenient


def _same_number(_: Any) -> Callable[..., AttemptId]:
    def reuse(forgotten: Mapping[JobId, Collection[int]], job: JobRecord) -> AttemptId:
        return attempt_id(job.id, max(1, job.state.attempt))

    return reuse


def _any_attempt(_: Any) -> Callable[..., bool]:
    def may(draft: Draft, attempt: AttemptId, saved: ModelSaved) -> bool:
        job = draft.world.jobs[draft.world.attempts[attempt].job]
        versions = draft.world.models.get(job.spec.name, ())
        return saved.rank == 0 and all(version.attempt != attempt for version in versions)

    return may


def _answers_anyway(submit: Callable[..., JobId]) -> Callable[..., JobId]:
    def hopeful(control: Controller, spec: JobSpec, code: str, key: str, by: str) -> JobId:
        try:
            return submit(control, spec, code, key, by)
        except StoreUnavailable:
            return job_id(spec.name, control.world.sequence + 1)

    return hopeful


def _starts_again(start: Callable[..., None]) -> Callable[..., None]:
    def eager(agent: SimAgent, command: StartRanks) -> None:
        agent._runs.pop(command.launch.attempt, None)
        start(agent, command)

    return eager


def _no_nodes(puts: Callable[[Commit], Iterator[Any]]) -> Callable[[Commit], Iterator[Any]]:
    return lambda commit: ((table, found) for table, found in puts(commit) if table is not tables.nodes)


def _first_left_out(commit: Callable[..., None]) -> Callable[..., None]:
    def forgetful(store: Store, epoch: int, what: Commit) -> None:
        commit(store, epoch, replace(what, events=what.events[1:]) if len(what.events) > 1 else what)

    return forgetful


def _no_claim(_: Any) -> Callable[[World, JobRecord, Placement | None], JobRecord]:
    return lambda world, job, placement: job


def _without_claims(rooms: Callable[[Plan], Iterator[Any]]) -> Callable[[Plan], Iterator[Any]]:
    return lambda plan: (replace(room, claims=()) for room in rooms(plan))


def _counts_evictions(verdict: Callable[..., AttemptEnded]) -> Callable[..., AttemptEnded]:
    def strict(job: JobRecord, *rest: Any) -> AttemptEnded:
        ended = verdict(job, *rest)
        return replace(ended, interrupted=ended.interrupted and job.stop != "preempt")

    return strict


def _shares_are_free(free: Callable[..., Any]) -> Callable[..., Any]:
    def generous(there: Any, held: Any) -> Any:
        whole, shares, fenced = free(there, held)
        return whole, tuple(Share(share.index, WHOLE - 1, share.free_memory_bytes) for share in shares), fenced

    return generous


def _has_room(_: Any) -> Callable[..., bool]:
    return lambda *_: True


MUTANTS: Final[dict[str, Mutant]] = {
    "forget_lost": Mutant("a gang that its node lost is forgotten", "converges", observed, "_hold_against", _forget_lost, 15),
    "partial_gang": Mutant("a gang is started though a part is missing", "whole_gang", Fleet, "take", _partial_gang),
    "zombie_gpu": Mutant(
        "devices are given away on which ranks of a lost gang live", "one_attempt_per_device", controller, "fences", _no_fences, 8
    ),
    "double_apply": Mutant("a submit is applied again after a crash", "nothing_twice", Store, "job_of_key", _no_key, 23),
    "epoch_reuse": Mutant("the next leader has its predecessor's number", "one_leader_an_epoch", Store, "take_lead", _same_epoch),
    "ledger_leak": Mutant("a millisecond of device time is in no category", "ledger_balances", _Book, "add", _leaking),
    "early_end": Mutant("a gang counts as over once one part is", "ended_is_ended", observed, "is_over", _any_part),
    "stale_leader": Mutant("a superseded leader writes", "only_the_leader_writes", Store, "_leading", _whoever, 97),
    "short_lease": Mutant("a node is given up without the kill grace", "leases_hold", leases, "note_lost", _impatient),
    "drained_node": Mutant("a drained node gets work", "placed_where_it_may", observed, "ready", _drained_too),
    "one_more_start": Mutant("a job is started once more than it may", "restarts_are_counted", verdict, "_again", _once_more),
    "same_attempt": Mutant("the next attempt has the last one's number", "no_bug", names, "next_attempt", _same_number),
    "old_commits": Mutant("an attempt that was given up registers", "one_attempt_commits", facts, "_may_register", _any_attempt),
    "empty_promise": Mutant("a submit is answered unwritten", "nothing_forgotten", Controller, "submit", _answers_anyway),
    "starts_again": Mutant("a start that is said again starts again", "started_once", SimAgent, "_start", _starts_again),
    "epoch_back": Mutant("leaders forget that an epoch was raised", "epochs_only_grow", Store, "take_lead", _own_count),
    "no_row": Mutant("what is true of nodes is in the log alone", "log_is_tables", rows, "_puts", _no_nodes),
    "open_claim": Mutant("what was claimed is free for all", "claims_are_kept", effects, "_claimed", _no_claim, 11),
    "no_claim": Mutant("a gang is ended and nobody claims its room", "evicted_for_a_claim", planned, "_rooms", _without_claims),
    "costly_eviction": Mutant(
        "who makes room uses up a restart", "restarts_are_counted", observed, "verdict", _counts_evictions, 11
    ),
    "full_share": Mutant(
        "shares are given of a device that has no more",
        "shares_fit",
        snapshots,
        "_free",
        _shares_are_free,
        18,
        (Taken, "has_room", _has_room),
    ),
    "log_gap": Mutant("an event is not written", "log_is_dense", Store, "commit", _first_left_out),
}
"""The first six are asked for by name; the others hold the rest of the properties to account."""
