"""What ranks say of themselves, as events of their job: checkpoints, resumptions, models. Pure but for the draft it is given."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from phalanx.core.events import ModelRegistered, RankSaid
from phalanx.core.health import Corruption
from phalanx.core.ids import AttemptId
from phalanx.core.records import ModelSaved, RankFact
from phalanx.core.trace_request import TraceMissed
from phalanx.operate.control.asked import REASON_CHARS_MAX
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.quarantine import may_quarantine, quarantined, seats
from phalanx.operate.control.world import AttemptRecord, Lineage

FACTS_MAX: Final = 10_000
"""Of one attempt. Each is a line of the log for ever; a rank that says more says it in vain. Excuses for traces are not among
them: somebody asked for each, and no rank has more than one for a request."""


def add_all(draft: Draft, attempt: AttemptId, facts: Sequence[RankFact], lineage: Lineage, at_ms: int) -> int:
    """Adds what the attempt may still say; answers with how many facts were ignored. Its one model version always gets in, and
    what somebody waits for."""
    ignored = 0
    for fact in facts:
        if isinstance(fact, TraceMissed) and not _is_awaited(draft.world.attempts[attempt], fact):
            continue
        registers = isinstance(fact, ModelSaved) and _may_register(draft, attempt, fact)
        if draft.world.attempts[attempt].facts < FACTS_MAX or registers or isinstance(fact, TraceMissed):
            _add(draft, attempt, fact, lineage if registers else None, at_ms)
        else:
            ignored += 1
    return ignored


def _is_awaited(attempt: AttemptRecord, missed: TraceMissed) -> bool:
    """Whether that rank was asked for that trace, and has not said yet that it leaves none."""
    return missed.rank in range(attempt.placement.world_size) and any(
        traces.request.number == missed.number
        and traces.request.is_of(missed.rank)
        and all(one.rank != missed.rank for one in traces.missed)
        for traces in attempt.traces
    )


def _may_register(draft: Draft, attempt: AttemptId, saved: ModelSaved) -> bool:
    """A model version, once an attempt, by the first living rank of the job's newest attempt: one that was given up has no say,
    also where no other has followed it yet. An attempt whose nodes were there to the end has said everything before it ended."""
    record = draft.world.attempts[attempt]
    job = draft.world.jobs[record.job]
    given_up = job.attempt != attempt or record.is_given_up
    versions = draft.world.models.get(job.spec.name, ())
    return saved.rank == record.first_rank and not given_up and all(version.attempt != attempt for version in versions)


def _add(draft: Draft, attempt: AttemptId, fact: RankFact, lineage: Lineage | None, at_ms: int) -> None:
    fact = _finite(fact)
    record = draft.world.attempts[attempt]
    job = draft.world.jobs[record.job]
    draft.add(RankSaid(job.id, attempt, fact), at_ms)
    if isinstance(fact, Corruption):
        _quarantine(draft, attempt, fact, at_ms)
    if isinstance(fact, ModelSaved) and lineage is not None:
        versions = draft.world.models.get(job.spec.name, ())
        version = versions[-1].version + 1 if versions else 1
        descent = dict(lineage(job, record, fact))
        draft.add(ModelRegistered(job.spec.name, version, job.id, attempt, fact, descent), at_ms)


def _quarantine(draft: Draft, attempt: AttemptId, found: Corruption, at_ms: int) -> None:
    """Of one rank that is known to be corrupt, while its attempt goes on."""
    world, record = draft.world, draft.world.attempts[attempt]
    if world.policy.health.corruption != "quarantine" or not found.certain or len(found.ranks) > 1 or record.ended_ms is not None:
        return
    places = seats(record)
    if found.ranks[0] < len(places) and may_quarantine(world, places[found.ranks[0]][0]):
        for event in quarantined(world, record, places[found.ranks[0]][0], f"{attempt}: {found.sentence()}"[:REASON_CHARS_MAX]):
            draft.add(event, at_ms)


def _finite(fact: RankFact) -> RankFact:
    """Without metrics that JSON cannot carry: the log would not be readable again."""
    if not isinstance(fact, ModelSaved):
        return fact
    return replace(fact, metrics={name: value for name, value in fact.metrics.items() if math.isfinite(value)})
