"""What would be decided, as people see it: the newest snapshot and a spec in, views out. Pure; takes as long as a decision."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from phalanx.core import wire
from phalanx.core.devices import CPU_SLOT, WHOLE, Placement
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import ANY, Policy, Queue
from phalanx.core.reasons import NeverFits, Reason, named
from phalanx.core.units import show_amount, utc_second
from phalanx.core.views import ChangeView, EtaView, PlacedView, PlanView, QueueEffectView, WhyView
from phalanx.decide.scheduler.plan import Eta, Start, Wait
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, Snapshot
from phalanx.decide.scheduler.why.dry_run import Trial, dry_run, trial
from phalanx.decide.scheduler.why.eta import is_vague
from phalanx.decide.scheduler.why.late import late_text
from phalanx.decide.scheduler.why.what_if import Change
from phalanx.fabric.catalogue import lookup
from phalanx.operate.control.node_rules import known_of
from phalanx.operate.control.queue_views import chain, queue_views

HOUR_MS: Final = 3_600_000


def plan_view(
    snapshot: Snapshot, facts: JobFacts, jobs: int = 1, unmet: tuple[JobId, ...] = (), failed: tuple[JobId, ...] = ()
) -> PlanView:
    """Of a job as if it were submitted at the time of the snapshot; one of so many `jobs` of an array. unmet, failed: of the jobs
    that it comes after."""
    tried = dry_run(snapshot, facts, unmet, failed)
    decision = tried.decision
    nodes = {node.node: node for node in snapshot.nodes}
    placed = tuple(_placed(snapshot.policy, decision.placement, nodes)) if isinstance(decision, Start) else ()
    kind = placed[0].type if placed else _kind(snapshot, facts)
    parts = facts.shape.request.milli / WHOLE
    per_hour = _per_hour(placed, parts) if placed else _typical(snapshot, kind, facts)
    reason = None if isinstance(decision, Start) else decision.reason
    shape, given = facts.shape, sum(len(part.devices) for part in placed)
    return PlanView(
        answer="starts" if reason is None else "never" if isinstance(reason, NeverFits) else "waits",
        sentence=_sentence(tried),
        type=kind,
        num_devices=(given or shape.num_devices) * parts,
        placed=placed,
        evicts=tuple(sorted({evict.job for evict in tried.evictions})),
        reason=None if reason is None else wire.plain(Reason, reason),
        position=None if isinstance(decision, Start) else decision.position,
        eta=eta_view(tried.eta, snapshot.now_ms),
        changes=change_views(tried.changes),
        cost_per_hour=per_hour,
        cost_of_limit=None if per_hour is None or facts.limit_ms is None else per_hour * facts.limit_ms / HOUR_MS,
        queues=tuple(_effects(snapshot, facts.queue, kind, (given or shape.fewest_nodes * shape.request.count) * parts)),
        as_of_ms=snapshot.now_ms,
        notes=tuple(_notes(snapshot, facts, tried, None if per_hour is not None else kind)),
        jobs=jobs,
        region=snapshot.policy.region,
        ends=tried.young,
        ends_ms=tried.young_ms,
        smaller=tried.smaller,
    )


def _notes(snapshot: Snapshot, facts: JobFacts, tried: Trial, unpriced: str | None) -> Iterator[str]:
    """unpriced: the device type that has no price, '' where that is of any."""
    if late := _late(snapshot, facts, tried):
        yield late
    if unpriced is not None:
        yield f"no price is known for {unpriced or 'these devices'}, so there is no cost"


def _late(snapshot: Snapshot, facts: JobFacts, tried: Trial) -> str:
    if isinstance(tried.decision, Wait) and isinstance(tried.decision.reason, NeverFits):
        return ""
    starts_ms = snapshot.now_ms if isinstance(tried.decision, Start) or tried.evictions else None
    seen = eta_view(tried.eta, snapshot.now_ms)
    eta = None if seen is None or seen.vague else tried.eta
    return late_text(facts.deadline_ms, facts.limit_ms, snapshot.now_ms, starts_ms, eta)


def eta_view(eta: Eta | None, now_ms: int) -> EtaView | None:
    if eta is None:
        return None
    return EtaView(low_ms=eta.low_ms, high_ms=eta.high_ms, vague=is_vague(eta, now_ms), latest_ms=eta.latest_ms)


def change_views(changes: Sequence[Change]) -> tuple[ChangeView, ...]:
    return tuple(ChangeView(field=change.field, value=change.value, was=change.was) for change in changes)


def _kind(snapshot: Snapshot, facts: JobFacts) -> str:
    """The type that it would run on: the first it names that there is, else the first there is, GPUs before CPU slots."""
    there = {kind for node in snapshot.nodes for _, kind in node.devices}
    wanted = facts.shape.request.types or sorted(there, key=lambda kind: (kind == CPU_SLOT, kind))
    return next((kind for kind in wanted if kind in there), wanted[0] if wanted else "")


def why_waiting(snapshot: Snapshot, view: WhyView) -> WhyView:
    """The view of a job that waits in the snapshot, with when it is expected to start and what would start it now."""
    try:
        tried = trial(snapshot, view.job)
    except KeyError:
        return view
    facts = next(job.facts for job in snapshot.pending if job.facts.job == view.job)
    return replace(
        view,
        sentence=f"{view.sentence}{_young(tried)}",
        eta=eta_view(tried.eta, snapshot.now_ms),
        changes=change_views(tried.changes),
        late=_late(snapshot, facts, tried) or view.late,
        ends=tried.young,
        ends_ms=tried.young_ms,
        smaller=tried.smaller,
    )


def _sentence(tried: Trial) -> str:
    if isinstance(tried.decision, Start):
        return "would start now"
    if tried.evictions:
        victims = sorted({evict.job for evict in tried.evictions})
        return f"would start once {named(victims)} made room for it"
    return f"{tried.decision.reason.sentence()}{_young(tried)}"


def _young(tried: Trial) -> str:
    """'; a-1 can be ended and b-2 can be made smaller for it from 2026-11-28 09:00:59 UTC'."""
    if tried.young_ms is None:
        return ""
    ended = [job for job in tried.young if job not in tried.smaller]
    smaller = [job for job in tried.young if job in tried.smaller]
    said = [f"{named(jobs)} can be {what}" for jobs, what in ((ended, "ended"), (smaller, "made smaller")) if jobs]
    return f"; {' and '.join(said)} for it from {utc_second(tried.young_ms)}"


def _placed(policy: Policy, placement: Placement, nodes: Mapping[NodeId, NodeFacts]) -> Iterator[PlacedView]:
    for part in placement.slices:
        node = nodes[part.node]
        kind = dict(node.devices)[part.devices[0]]
        yield PlacedView(node=part.node, type=kind, devices=part.devices, price=_price(policy, node.node, kind))


def _per_hour(placed: Sequence[PlacedView], parts: float) -> float | None:
    prices = [None if part.price is None else part.price * len(part.devices) * parts for part in placed]
    return None if None in prices else sum(price for price in prices if price is not None)


def _typical(snapshot: Snapshot, kind: str, facts: JobFacts) -> float | None:
    """At the price of the first node that has such devices."""
    node = next((node for node in snapshot.nodes if any(kind == one for _, one in node.devices)), None)
    price = _price(snapshot.policy, node.node, kind) if node is not None else None
    return None if price is None else price * facts.shape.num_devices * facts.shape.request.milli / WHOLE


def _price(policy: Policy, node: NodeId, kind: str) -> float | None:
    """US dollars per device and hour: the policy's, which may be 0, else the catalogue's; None where neither has one."""
    known = known_of(policy, node)
    return known.price_of(kind) if known.price is not None or lookup(kind) else None


def _effects(snapshot: Snapshot, asked: str, kind: str, num_devices: float) -> Iterator[QueueEffectView]:
    """Of so many devices of the type in the queue that is asked."""
    views = {view.name: view for view in queue_views(snapshot)}
    for name in chain(snapshot.policy, asked):
        queue, view = snapshot.policy.queues.get(name, Queue()), views.get(name)
        held = view.held.get(kind, 0) if view is not None else 0
        budget = queue.budget
        spent = ""
        if budget is not None and view is not None:
            parts = ((view.spent_hours, budget.gpu_hours, "GPU-hours"), (view.spent_usd, budget.money, "USD"))
            of = [f"{show_amount(had)} of {show_amount(most)} {unit}" for had, most, unit in parts if most is not None]
            spent = f"{' and '.join(of)} a {budget.period}"
        yield QueueEffectView(
            queue=name,
            held=held,
            after=round(held + num_devices, 3),
            quota=queue.quota.get(kind, queue.quota.get(ANY)),
            limit=queue.limit.get(kind, queue.limit.get(ANY)),
            budget=spent,
        )
