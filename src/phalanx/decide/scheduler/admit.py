"""Step 3, what a queue may have: the types of which a job may take devices now, and why not the others.

What guarantees have no part in, such as a limit that is used up, is told again in later decisions as long as it is the same: after
a small change that is nearly all that is refused.
"""

from bisect import bisect_left
from dataclasses import replace

from phalanx.core.reasons import Reason
from phalanx.decide.scheduler.quotas.admission import Admission, Saved
from phalanx.decide.scheduler.refusals import Refused
from phalanx.decide.scheduler.room import handover
from phalanx.decide.scheduler.round import Round
from phalanx.decide.scheduler.snapshot import PendingJob, Shape
from phalanx.decide.scheduler.why import explain


def admitted(job: PendingJob, shape: Shape, round_: Round) -> tuple[tuple[str, ...], tuple[Reason, ...]]:
    """Types that it may have devices of, if it has this shape; and why it may not of the others on which it would fit."""
    facts, known = job.facts, round_.known.admitted
    key = (round_.known.number(shape), facts.queue, facts.preemptible)
    if key not in known:
        kinds, num_devices, tree = round_.eligible(shape), shape.num_devices, round_.tree
        asked = [(kind, tree.admit(facts, kind, num_devices)) for kind in kinds]
        known[key] = (
            tuple([kind for kind, admission in asked if admission.ok]),
            tuple([admission.reason for _, admission in asked if admission.reason is not None]),
        )
    return known[key]


def smaller(job: PendingJob, round_: Round) -> PendingJob | None:
    """An elastic job with as many nodes as its queue may have, when it may not have all."""
    shape, known = job.facts.shape, round_.known
    sizes = shape.sizes[:-1]
    if not sizes:
        return None
    most = bisect_left(sizes, True, key=lambda num_nodes: not admitted(job, known.resized(shape, num_nodes), round_)[0])
    return replace(job, facts=replace(job.facts, shape=known.resized(shape, sizes[most - 1]))) if most else None


def refused_again(job: PendingJob, number: int, round_: Round) -> Reason | None:
    """Why its queue may not have it, where such a job heard so last, it is for the same cause, and nobody's end would let it in."""
    facts, known = job.facts, round_.known.admitted
    asked = (number, facts.queue, facts.preemptible)
    heard = round_.refusals.of(asked)
    if heard is None or round_.tree.bars(facts, heard.kinds, heard.amount) != heard.bars:
        return None
    if heard.unsaved and handover.helped_on(job, heard.unsaved, round_):
        return None
    round_.refusals.heard[asked] = heard
    if asked not in known:
        round_.tree.refuse(facts, heard.kinds, heard.amount, heard.told)
        known[asked] = (), heard.reasons
    return heard.reason


def refused(job: PendingJob, number: int, reasons: tuple[Reason, ...], round_: Round) -> Reason:
    """Why its queue may not have it, of the reasons for each type. What guarantees have no part in may be heard again. An elastic
    job is told why it may not even have its fewest nodes: with those it starts."""
    facts, shape, kinds = job.facts, job.facts.shape, round_.eligible(job.facts.shape)
    if shape.fewest_nodes < shape.num_nodes:
        smallest = round_.known.resized(shape, shape.fewest_nodes)
        return explain.refused(smallest, admitted(job, smallest, round_)[1])
    reason, amount = explain.refused(shape, reasons), shape.num_devices * shape.request.milli
    bars = round_.tree.bars(facts, kinds, amount)
    if None not in bars:
        unsaved = tuple([kind for kind, bar in zip(kinds, bars, strict=True) if not isinstance(bar, Saved)])
        told = tuple([Admission(False, reason=one) for one in reasons])
        heard = Refused(kinds, amount, bars, unsaved, told, reasons, reason)
        round_.refusals.heard[number, facts.queue, facts.preemptible] = heard
    return reason
