"""What people are told of a job that waits, besides its reason: of a frozen snapshot."""

from phalanx.core.ids import JobId
from phalanx.core.views import WhyView
from phalanx.decide.scheduler.plan import Eta
from phalanx.operate.control.dry_views import eta_view, plan_view, why_waiting
from tests.decide.scheduler.sharing import HOUR, MINUTE, NOW, facts, gang, job, world

DAY = 24 * HOUR
FROM = "; low-1 can be ended for it from 1970-02-11 16:01:00 UTC"


def test_who_waits_for_a_gang_that_is_too_young_to_be_ended_is_told_so() -> None:
    young = gang("low-1", count=8, priority=0, placed_ms=NOW - MINUTE)
    snapshot = world({}, [young], [job("high-2", count=4, priority=80)])
    why = WhyView(job=JobId("high-2"), state="pending", sentence="waits for devices", reason=None, position=1)
    assert why_waiting(snapshot, why).sentence == f"waits for devices{FROM}"
    alone = world({}, [young])
    assert plan_view(alone, facts("mine-3", count=4, priority=80)).sentence.endswith(FROM)
    assert "can be ended" not in plan_view(alone, facts("mine-3", count=4, priority=0)).sentence


def test_an_interval_of_weeks_that_may_begin_at_once_is_vague() -> None:
    far = {"near": Eta(NOW + HOUR, NOW + 8 * DAY), "far": Eta(NOW + DAY, NOW + 9 * DAY), "short": Eta(NOW, NOW + 6 * DAY)}
    views = {name: eta_view(eta, NOW) for name, eta in far.items()}
    assert {name: view.vague for name, view in views.items() if view is not None} == {"near": True, "far": False, "short": False}
    assert eta_view(None, NOW) is None
