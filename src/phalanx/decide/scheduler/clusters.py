"""What several clusters answered of a job, as offers for `dispatch`, and its choice as people see it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from phalanx.core.clusters import Answer, Cluster, Clusters, DispatchView, OfferView
from phalanx.core.devices import WHOLE
from phalanx.core.ids import JobId
from phalanx.core.spec import JobSpec
from phalanx.core.units import show_duration, write_duration
from phalanx.core.views import PlanView
from phalanx.decide.scheduler.dispatch import HOUR_MS, Dispatch, Errand, Offer, Route, Terms, dispatch
from phalanx.decide.scheduler.room.ends import SOON_MS

RUN_MS: Final = HOUR_MS
"""How long a job is taken to run that has no `max_duration`."""

UNKNOWN_WAIT_MS: Final = 7 * 24 * HOUR_MS
"""Where a cluster has no useful estimate of a start: wider than a week is none (`dry_views.VAGUE_MS`), so it counts as a week."""


def choose(spec: JobSpec, clusters: Clusters, answers: Sequence[Answer], now_ms: int) -> DispatchView:
    """Where the job would go, of the clusters that answered."""
    plans = {answer.cluster: answer.plan for answer in answers if answer.plan is not None}
    offers = [offer_of(name, clusters.clusters[name], plan, now_ms) for name, plan in plans.items()]
    terms = Terms(hour_of_delay=clusters.hour_of_delay, egress=clusters.egress, burst_after_ms=clusters.burst_after_ms)
    errand = errand_of(spec, now_ms)
    found = dispatch(errand, offers, now_ms, terms)
    possible = (_possible(route, plans[route.cluster], place, now_ms) for place, route in enumerate(found.routes))
    away = (
        OfferView(cluster=one.cluster, verdict="away" if one.away else "refused", sentence=one.problem)
        for one in answers
        if one.plan is None
    )
    return DispatchView(
        job=spec.name,
        chosen=found.cluster,
        offers=(*possible, *_refused(found, plans, terms), *away),
        run_ms=errand.run_ms,
        as_of_ms=now_ms,
        notes=tuple(_notes(spec, clusters, found, plans)),
    )


def errand_of(spec: JobSpec, now_ms: int) -> Errand:
    """Of an array each job is taken to start when its first does, since plans say no more."""
    request = spec.resources.devices
    return Errand(
        job=JobId(spec.name),
        num_devices=request.count * request.milli / WHOLE * spec.num_nodes,
        run_ms=RUN_MS if spec.max_duration_ms is None else spec.max_duration_ms,
        data=spec.placing.data_bytes,
        regions=frozenset(spec.placing.regions),
        deadline_ms=spec.deadline_ms(now_ms),
        jobs=spec.array.count if spec.array is not None else 1,
    )


def offer_of(name: str, cluster: Cluster, plan: PlanView, now_ms: int) -> Offer:
    """Devices without a price count as paid for: `_notes` says so."""
    wait_ms = _wait_ms(plan)
    return Offer(
        cluster=name,
        region=plan.region,
        start_ms=None if plan.answer == "never" else now_ms + (UNKNOWN_WAIT_MS if wait_ms is None else wait_ms),
        price=cluster.price if cluster.price is not None else _own_price(plan) or 0.0,
        speed=cluster.speed,
        burst=cluster.burst,
        bandwidth=cluster.bandwidth_bytes,
    )


def _wait_ms(plan: PlanView) -> int | None:
    """To the middle of the interval, by the cluster's own clock, which may not be ours; None where there is no useful interval."""
    if plan.answer == "starts":
        return 0
    if plan.reason is not None and plan.reason["kind"] == "making_room":
        return SOON_MS
    return None if plan.eta is None or plan.eta.vague else max(0, (plan.eta.low_ms + plan.eta.high_ms) // 2 - plan.as_of_ms)


def _own_price(plan: PlanView) -> float | None:
    return None if plan.cost_per_hour is None or not plan.num_devices else plan.cost_per_hour / plan.num_devices


def _possible(route: Route, plan: PlanView, place: int, now_ms: int) -> OfferView:
    wait_ms = _wait_ms(plan)
    return OfferView(
        cluster=route.cluster,
        verdict="possible" if place else "chosen",
        sentence=plan.sentence,
        region=plan.region,
        start_ms=None if wait_ms is None else now_ms + wait_ms,
        ready_ms=route.ready_ms,
        done_ms=route.done_ms,
        late_ms=route.late_ms,
        moved_bytes=route.moved_bytes,
        cost=route.cost,
        cost_of_devices=route.devices,
        cost_of_data=route.data,
        cost_of_delay=route.delay,
    )


def _refused(found: Dispatch, plans: Mapping[str, PlanView], terms: Terms) -> Iterator[OfferView]:
    for name, why in sorted(found.refused.items()):
        plan = plans[name]
        match why:
            case "residency":
                sentence = f"is in {plan.region or 'no region that it names'}, which is none of placing.regions"
            case "burst not needed yet":
                sentence = f"is for bursts, and another starts it within {write_duration(terms.burst_after_ms)}"
            case "never fits":
                sentence = plan.sentence
        yield OfferView(cluster=name, verdict="refused", sentence=sentence, region=plan.region)


def _notes(spec: JobSpec, clusters: Clusters, found: Dispatch, plans: Mapping[str, PlanView]) -> Iterator[str]:
    """What was taken for granted."""
    if not found.routes:
        return
    if spec.max_duration_ms is None:
        yield f"max_duration is left out, so the job is taken to run {write_duration(RUN_MS)}"
    if spec.array is not None:
        once = "; their data are moved once" if spec.placing.data else ""
        yield f"costs are of all {spec.array.count:,} jobs, as if each started with the first{once}"
    for route in found.routes:
        name, plan = route.cluster, plans[route.cluster]
        if clusters.clusters[name].price is None and _own_price(plan) is None:
            yield f"no price is known of the devices of {name}, so they count as paid for; give it a price in the clusters file"
        if _wait_ms(plan) is None:
            yield f"{name} has no useful estimate of the start, which counts as in {show_duration(UNKNOWN_WAIT_MS)}"
        if spec.placing.data and not plan.region:
            yield f"{name} says no region, so all data count as elsewhere; set region in its policy"
