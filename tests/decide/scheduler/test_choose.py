"""Answers of clusters as offers: their clocks, their prices, what is taken for granted."""

from typing import Any

import pytest

from phalanx.core.clusters import Answer, Cluster, Clusters
from phalanx.core.spec import Array, JobSpec, Placing, Resources
from phalanx.core.views import EtaView, PlanView
from phalanx.decide.scheduler.clusters import UNKNOWN_WAIT_MS, choose, errand_of
from phalanx.decide.scheduler.dispatch import HOUR_MS, TB
from phalanx.decide.scheduler.room.ends import SOON_MS

NOW_MS = 10**12
SPEC = JobSpec(name="mine", entrypoint="true", num_nodes=2, resources=Resources(gpus="H100:4"), max_duration="2h")
CLUSTERS = Clusters(clusters={"lab": Cluster(home="lab"), "cloud": Cluster(url="http://localhost", token_file="t", price=1.0)})


def plan(**changes: Any) -> PlanView:
    base: dict[str, Any] = {
        "answer": "starts", "sentence": "would start now", "type": "H100", "num_devices": 8, "placed": (), "evicts": (),
        "reason": None, "position": None, "eta": None, "changes": (), "cost_per_hour": 16.0, "cost_of_limit": None, "queues": (),
        "as_of_ms": NOW_MS, "region": "eu",
    }  # fmt: skip
    return PlanView(**{**base, **changes})


def waits(low_ms: int, high_ms: int, as_of_ms: int = NOW_MS, vague: bool = False) -> PlanView:
    eta = EtaView(low_ms=as_of_ms + low_ms, high_ms=as_of_ms + high_ms, vague=vague)
    return plan(answer="waits", sentence="waits", eta=eta, as_of_ms=as_of_ms)


def test_the_price_is_the_plans_or_the_files() -> None:
    found = choose(SPEC, CLUSTERS, [Answer("lab", plan()), Answer("cloud", plan())], NOW_MS)
    assert [(one.cluster, one.verdict) for one in found.offers] == [("cloud", "chosen"), ("lab", "possible")]
    assert [one.cost_of_devices for one in found.offers] == pytest.approx([8 * 2 * 1.0, 8 * 2 * 2.0])
    assert (found.chosen, found.run_ms, found.notes) == ("cloud", 2 * HOUR_MS, ())


def test_a_wait_is_measured_by_the_clock_of_the_cluster() -> None:
    """One that is a day ahead, and whose interval is from one to three hours on."""
    (offer,) = choose(SPEC, CLUSTERS, [Answer("lab", waits(HOUR_MS, 3 * HOUR_MS, NOW_MS + 24 * HOUR_MS))], NOW_MS).offers
    assert (offer.start_ms, offer.done_ms) == (NOW_MS + 2 * HOUR_MS, NOW_MS + 4 * HOUR_MS)


@pytest.mark.parametrize("unknown", [waits(0, 10**12, vague=True), plan(answer="waits")], ids=["vague", "none"])
def test_a_start_that_nobody_knows_is_late_and_told(unknown: PlanView) -> None:
    (offer,) = (found := choose(SPEC, CLUSTERS, [Answer("lab", unknown)], NOW_MS)).offers
    assert (offer.start_ms, offer.ready_ms) == (None, NOW_MS + UNKNOWN_WAIT_MS)
    assert found.notes == ("lab has no useful estimate of the start, which counts as in 7d 00h",)


def test_a_job_that_gangs_are_ended_for_starts_when_they_have_let_go() -> None:
    room = plan(answer="waits", reason={"kind": "making_room", "gangs": ["low-1"], "devices": 8})
    (offer,) = (found := choose(SPEC, CLUSTERS, [Answer("lab", room)], NOW_MS)).offers
    assert (offer.start_ms, found.notes) == (NOW_MS + SOON_MS, ())


def test_each_refusal_has_its_sentence() -> None:
    clusters = Clusters(
        clusters={"lab": Cluster(home="lab"), "far": Cluster(home="far"), "small": Cluster(home="s"), "cloud": Cluster(burst=True)}
    )
    spec = JobSpec(name="mine", entrypoint="true", placing=Placing(regions=("eu",)))
    never = plan(answer="never", sentence="never fits: asks for 8")
    answers = [
        Answer("far", plan(region="us")),
        Answer("small", never),
        Answer("cloud", plan()),
        Answer("lab", plan()),
        Answer("shut", None, "the token is unknown"),
        Answer("gone", None, "does not answer", away=True),
    ]
    said = {one.cluster: (one.verdict, one.sentence) for one in choose(spec, clusters, answers, NOW_MS).offers}
    assert said == {
        "lab": ("chosen", "would start now"),
        "far": ("refused", "is in us, which is none of placing.regions"),
        "small": ("refused", "never fits: asks for 8"),
        "cloud": ("refused", "is for bursts, and another starts it within 1h"),
        "shut": ("refused", "the token is unknown"),
        "gone": ("away", "does not answer"),
    }


def test_what_is_taken_for_granted_is_told() -> None:
    spec = JobSpec(name="mine", entrypoint="true", array=Array(count=3), placing=Placing(data={"eu": "1TB"}))
    found = choose(spec, CLUSTERS, [Answer("lab", plan(cost_per_hour=None, region=""))], NOW_MS)
    assert found.notes == (
        "max_duration is left out, so the job is taken to run 1h",
        "costs are of all 3 jobs, as if each started with the first; their data are moved once",
        "no price is known of the devices of lab, so they count as paid for; give it a price in the clusters file",
        "lab says no region, so all data count as elsewhere; set region in its policy",
    )


@pytest.mark.parametrize(("jobs", "chosen"), [(1, "lab"), (10, "cloud")])
def test_of_an_array_the_devices_of_all_jobs_count_and_its_data_once(jobs: int, chosen: str) -> None:
    """One job is not worth the way of its data to where devices are cheaper; ten are."""
    spec = JobSpec(
        name="mine", entrypoint="true", num_nodes=2, resources=Resources(gpus="H100:4"), max_duration="2h", array=Array(count=jobs),
        placing=Placing(data={"eu": "1TB"}),
    )  # fmt: skip
    answers = [Answer("lab", plan()), Answer("cloud", plan(region="us"))]
    found = choose(spec, CLUSTERS, answers, NOW_MS)
    assert found.chosen == chosen
    cloud = next(one for one in found.offers if one.cluster == "cloud")
    assert (cloud.cost_of_devices, cloud.cost_of_data) == pytest.approx((jobs * 16.0, 90.0))


def test_an_interval_that_is_over_is_a_start_at_once() -> None:
    (offer,) = choose(SPEC, CLUSTERS, [Answer("lab", waits(-3 * HOUR_MS, -HOUR_MS))], NOW_MS).offers
    assert (offer.start_ms, offer.ready_ms) == (NOW_MS, NOW_MS)


def test_an_errand_is_what_the_spec_says() -> None:
    spec = JobSpec(
        name="mine", entrypoint="true", resources=Resources(gpus="0.25"), deadline="3h", placing=Placing(data={"eu": "2TB"})
    )
    errand = errand_of(spec, NOW_MS)
    assert (errand.num_devices, errand.run_ms, errand.data) == (0.25, HOUR_MS, {"eu": 2 * TB})
    assert errand.deadline_ms == NOW_MS + 3 * HOUR_MS
