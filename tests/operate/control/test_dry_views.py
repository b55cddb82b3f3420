"""What people are told of a job that waits, besides its reason: of a frozen snapshot."""

from dataclasses import replace

from phalanx.core.ids import JobId
from phalanx.core.units import show_duration
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
    told = why_waiting(snapshot, why)
    assert (told.ends, told.ends_ms) == (("low-1",), NOW + MINUTE)
    assert told.eta is not None
    assert (told.eta.latest_ms, told.eta.high_ms) == (NOW + MINUTE, NOW + 2 * MINUTE)
    alone = world({}, [young])
    planned = plan_view(alone, facts("mine-3", count=4, priority=80))
    assert (planned.ends, planned.ends_ms) == (("low-1",), NOW + MINUTE)
    assert plan_view(alone, facts("mine-3", count=4, priority=80)).sentence.endswith(FROM)
    assert "can be ended" not in plan_view(alone, facts("mine-3", count=4, priority=0)).sentence


def test_who_waits_for_a_gang_that_will_be_made_smaller_is_not_told_that_it_is_ended() -> None:
    wide = gang("wide-1", count=8, num_nodes=2, placed_ms=NOW - MINUTE)
    wide = replace(wide, facts=replace(wide.facts, shape=replace(wide.facts.shape, min_nodes=1)))
    snapshot = world({}, [wide], [job("mine-2", count=8)], nodes=2)
    why = WhyView(job=JobId("mine-2"), state="pending", sentence="waits for devices", reason=None, position=1)
    told = why_waiting(snapshot, why)
    assert told.sentence == "waits for devices; wide-1 can be made smaller for it from 1970-02-11 16:01:00 UTC"
    assert (told.ends, told.smaller) == (("wide-1",), ("wide-1",))
    old = replace(snapshot, running=(replace(snapshot.running[0], placed_ms=NOW - HOUR),), pending=())
    planned = plan_view(old, facts("mine-2", count=8))
    assert (planned.sentence, planned.evicts, planned.smaller) == (
        "would start once wide-1 made room for it",
        ("wide-1",),
        ("wide-1",),
    )


def test_an_elastic_job_holds_no_more_than_its_queue_may_have() -> None:
    queues = {"queues": {"small": {"limit": {"H100": 5}}}}
    asked = facts("mine-3", "small", 2, 3)
    asked = replace(asked, shape=replace(asked.shape, min_nodes=1))
    (effect,) = plan_view(world(queues, nodes=3), asked).queues
    assert (effect.after, effect.limit) == (4, 5)
    waits = world(queues, [gang("r-1", "small", 4)], nodes=3)
    assert [(one.held, one.after) for one in plan_view(waits, asked).queues] == [(4, 6)], "two at least, when it starts"


def test_an_interval_of_weeks_that_may_begin_at_once_is_vague() -> None:
    far = {"near": Eta(NOW + HOUR, NOW + 8 * DAY), "far": Eta(NOW + DAY, NOW + 9 * DAY), "short": Eta(NOW, NOW + 6 * DAY)}
    views = {name: eta_view(eta, NOW) for name, eta in far.items()}
    assert {name: view.vague for name, view in views.items() if view is not None} == {"near": True, "far": False, "short": False}
    assert eta_view(None, NOW) is None


def test_a_deadline_that_cannot_be_kept_is_told() -> None:
    free, due = world({}), NOW + 10 * MINUTE
    late = plan_view(free, facts("mine-3", count=4, deadline_ms=due, limit_ms=HOUR))
    assert (late.sentence, late.notes[0]) == (
        "would start now",
        "run for max_duration (1h), it would be done 50m 00s after its deadline",
    )
    odd = plan_view(free, facts("mine-3", count=4, deadline_ms=due, limit_ms=1439 * MINUTE))
    assert odd.notes[0].startswith("run for max_duration (1439m), it would"), "as it is written, not 23h 59m, which cannot be"
    for kept in (facts("mine-3", deadline_ms=NOW + HOUR, limit_ms=HOUR), facts("mine-3", deadline_ms=due), facts("mine-3")):
        assert not any("deadline" in note for note in plan_view(free, kept).notes)
    after = facts("mine-3", deadline_ms=due, limit_ms=HOUR, window="nights")
    assert "be done at least 50m 00s after its deadline" in plan_view(free, after).notes[0]
    assert "deadline" not in "".join(plan_view(free, facts("mine-3", count=64, deadline_ms=due, limit_ms=HOUR)).notes)


def test_a_job_that_waits_is_late_by_when_it_is_expected_to_start() -> None:
    waits = job("mine-2", count=8, deadline_ms=NOW + HOUR, limit_ms=HOUR)
    snapshot = world({}, [gang("low-1", count=8, placed_ms=NOW - HOUR, limit_ms=3 * HOUR)], [waits])
    said = why_waiting(snapshot, WhyView(job=JobId("mine-2"), state="pending", sentence="waits", reason=None, position=1))
    assert said.eta is not None
    assert not said.eta.vague
    over = (said.eta.low_ms + said.eta.high_ms) // 2 - NOW
    assert said.late == f"run for max_duration (1h), it would be done about {show_duration(over)} after its deadline"
