"""Which cluster a job goes to: residency, capacity, data, cost, bursts."""

from itertools import permutations

import pytest

from phalanx.core.ids import JobId
from phalanx.decide.scheduler.dispatch import HOUR_MS, TB, Errand, Offer, Terms, dispatch

OWN = Offer(cluster="own", region="eu", start_ms=0, price=2.0)
FAR = Offer(cluster="far", region="us", start_ms=0, price=1.0)
CLOUD = Offer(cluster="cloud", region="eu", start_ms=0, price=4.0, burst=True)


def errand(**given: object) -> Errand:
    return Errand(**{"job": JobId("j-1"), "num_devices": 8, "run_ms": HOUR_MS, **given})  # type: ignore[arg-type]


def test_the_cheaper_cluster_wins_when_both_are_free_and_data_are_nowhere() -> None:
    found = dispatch(errand(), [OWN, FAR], 0)
    assert [route.cluster for route in found.routes] == ["far", "own"]
    assert found.routes[0].cost == pytest.approx(8 * 1.0 + 1.0)


def test_data_that_must_be_moved_cost_egress_and_time() -> None:
    """1 TB at 1 GB/s is 1,000 s; 90 dollars of egress are more than the 8 saved."""
    found = dispatch(errand(data={"eu": TB}), [OWN, FAR], 0)
    assert found.cluster == "own"
    far = found.routes[1]
    assert (far.moved_bytes, far.ready_ms) == (TB, 1_000_000)
    assert far.cost == pytest.approx(8 + 90 + (1_000_000 + HOUR_MS) / HOUR_MS)


def test_data_travel_while_the_job_waits() -> None:
    busy = Offer(cluster="far", region="us", start_ms=2_000_000, price=1.0)
    assert dispatch(errand(data={"eu": TB}), [busy], 0).routes[0].ready_ms == 2_000_000


def test_residency_forbids_whatever_it_costs() -> None:
    found = dispatch(errand(regions=frozenset({"eu"})), [OWN, FAR], 0)
    assert (found.cluster, found.refused) == ("own", {"far": "residency"})


def test_a_cluster_where_it_never_fits_is_none_and_nowhere_is_said() -> None:
    small = Offer(cluster="small", region="eu", start_ms=None, price=0.1)
    found = dispatch(errand(), [small], 0)
    assert (found.cluster, found.routes, found.refused) == (None, (), {"small": "never fits"})


@pytest.mark.parametrize(("start_ms", "chosen"), [(HOUR_MS, "own"), (HOUR_MS + 1, "cloud")])
def test_a_burst_is_rented_only_when_the_own_cluster_is_full_for_longer(start_ms: int, chosen: str) -> None:
    own = Offer(cluster="own", region="eu", start_ms=start_ms, price=2.0)
    assert dispatch(errand(), [own, CLOUD], 0, Terms(hour_of_delay=100.0)).cluster == chosen


def test_a_deadline_goes_before_cost() -> None:
    slow = Offer(cluster="slow", region="eu", start_ms=0, price=0.1, speed=0.5)
    assert dispatch(errand(), [OWN, slow], 0).cluster == "slow"
    found = dispatch(errand(deadline_ms=HOUR_MS), [OWN, slow], 0)
    assert (found.cluster, found.routes[1].late_ms) == ("own", HOUR_MS)


def test_the_order_of_offers_means_nothing() -> None:
    twin = Offer(cluster="a-twin", region="eu", start_ms=0, price=2.0)
    assert len({dispatch(errand(), offers, 0).routes for offers in permutations([OWN, FAR, CLOUD, twin])}) == 1
