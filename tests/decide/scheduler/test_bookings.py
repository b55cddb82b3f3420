"""What the policy keeps: devices booked for a queue, and spare nodes for repairs."""

from dataclasses import replace

from phalanx.core.ids import JobId
from phalanx.core.policy import Booking, Policy, Preemption, Queue
from phalanx.core.reasons import Behind, Kept
from phalanx.decide.scheduler import schedule
from phalanx.decide.scheduler.plan import Start
from phalanx.decide.scheduler.snapshot import PendingJob, Snapshot
from tests.decide.scheduler.closed_loop import ALL, HIGH, HOUR, LOW, MINUTE, NOW, STANDARD, Loop, facts, fleet, gang
from tests.decide.scheduler.test_kept import decided, limited, reason, runs, where

UTC_NOW = "1970-01-05T04:00Z"  # NOW
AT_6 = "1970-01-05T06:00Z"
AT_8 = "1970-01-05T08:00Z"


def booked(start: str, end: str, devices: int = 16) -> Policy:
    one = Booking(queue="vip", devices=f"H100:{devices}", start=start, end=end)
    return Policy(bookings={"launch": one}, queues={"vip": Queue(), "vip-child": Queue(parent="vip")})


def test_booked_devices_are_their_queues_and_before_only_for_what_ends_in_time() -> None:
    nodes = fleet(3)
    for limit_ms, starts in ((2 * HOUR, True), (2 * HOUR + 1, False), (None, False)):
        plan = decided(nodes, [], limited("next", limit_ms, 8, 2), policy=booked(AT_6, AT_8))
        assert (where(plan, "next") is not None) is starts
        if not starts:
            said = reason(plan, "next")
            assert isinstance(said, Kept) and said.what == "the booking 'launch'" and said.until_ms == NOW + 4 * HOUR
    assert where(decided(nodes, [], facts("next", 8), policy=booked(AT_6, AT_8)), "next") == ["n02"], "one is not booked"
    now = booked(UTC_NOW, AT_8)
    assert where(decided(nodes, [], limited("next", MINUTE, 8, 2), policy=now), "next") is None
    for queue in ("vip", "vip-child"):
        assert where(decided(nodes, [], facts("theirs", 8, 2, queue=queue), policy=now), "theirs") is not None
    assert where(decided(nodes, [], facts("next", 8, 3), policy=booked("1970-01-05T02:00Z", "1970-01-05T03:59Z")), "next")


def test_who_stands_behind_a_head_is_told_so_though_a_booking_keeps_other_devices() -> None:
    """Node 0 is booked, node 1 has one device free and all in an hour, which the head waits for: without it, or without the
    booking, the small job would start, and the head is gone first."""
    running = [replace(gang("r", (1, tuple(range(7))), priority=STANDARD), facts=limited("r", 2 * HOUR, 7))]
    nodes = fleet(2, held=running)
    plan = decided(nodes, running, facts("head", 8), facts("small", 1), policy=booked(AT_6, AT_8, 8))
    assert isinstance(reason(plan, "head"), Kept)
    assert reason(plan, "small") == Behind(JobId("head"), 2)
    assert isinstance(reason(decided(nodes, running, facts("two", 2), policy=booked(AT_6, AT_8, 8)), "two"), Kept)
    without = decided(nodes, running, facts("small", 1), policy=booked(AT_6, AT_8, 8))
    assert where(without, "small") == ["n01"]


def test_what_the_queue_holds_of_its_booking_is_not_kept_twice() -> None:
    running = [gang("theirs", (0, ALL), (1, ALL), priority=STANDARD, queue="vip-child")]
    plan = decided(fleet(3, held=running), running, facts("next", 8), policy=booked(UTC_NOW, AT_8))
    assert where(plan, "next") == ["n02"]
    assert plan.reservations == ()


def test_a_booking_far_away_keeps_nothing_from_what_may_be_ended_then() -> None:
    policy = booked("1970-01-09T04:00Z", "1970-01-10T04:00Z", 24)
    assert where(decided(fleet(3), [], facts("next", 8), policy=policy), "next") is not None
    stays = replace(facts("stays", 8), preemptible=False)
    assert isinstance(reason(decided(fleet(3), [], stays, policy=policy), "stays"), Kept)


def test_when_a_booking_begins_others_are_ended_for_its_queue() -> None:
    running = [gang("other", (0, ALL), (1, ALL), priority=STANDARD), gang("theirs", (2, ALL), priority=STANDARD, queue="vip")]
    nodes = fleet(3, held=running)
    plan = decided(nodes, running, facts("launch", 8, queue="vip"), policy=booked(UTC_NOW, AT_8))
    assert [(evicted.job, evicted.cause) for evicted in plan.evictions] == [("other", "booking")]
    assert decided(nodes, running, facts("launch", 8, 2, queue="vip"), policy=booked(UTC_NOW, AT_8)).evictions == (), "8 are left"
    assert decided(nodes, running, facts("launch", 8, queue="vip"), policy=booked(AT_6, AT_8)).evictions == (), "not yet"


def test_no_more_is_ended_for_a_booking_than_is_booked() -> None:
    """Of two jobs that ask at once, and of one that asks while the other waits for what it was promised."""
    policy = replace(booked("1970-01-05T00:00Z", AT_8, 8), preemption=Preemption(reclaim=False))
    for at_once in (True, False):
        loop = Loop(fleet(2), policy, stops_ms=lambda _: 5 * MINUTE)
        loop.running = [runs(f"b-{node}", node) for node in range(2)]
        loop.submit(facts("a-1", queue="vip"))
        if not at_once:
            loop.step()
        loop.submit(facts("a-2", queue="vip"))
        loop.steps(20)
        assert [cause for _, _, cause in loop.evicted] == ["booking"]
        assert loop.where("a-1") and not loop.where("a-2")


def two_bookings() -> Policy:
    """Eight devices each, for queues `a` and `b`, now."""
    both = {name: Booking(queue=name, devices="H100:8", start=UTC_NOW, end=AT_8) for name in ("a", "b")}
    return Policy(bookings=both, queues={"a": Queue(), "b": Queue()}, preemption=Preemption(reclaim=False))


def test_two_bookings_do_not_end_each_others_gangs() -> None:
    """What stands in the way of both may not be ended: without the rule they would take turns every two minutes."""
    firm = runs("firm", 0)
    loop = Loop(fleet(2), two_bookings())
    loop.running = [replace(firm, facts=replace(firm.facts, preemptible=False)), gang("b-1", (1, ALL), queue="b")]
    loop.submit(facts("a-1", queue="a", priority=LOW))
    loop.steps(10)
    assert loop.evicted == []


def test_what_is_booked_is_taken_from_its_queue_by_no_priority_share_or_guarantee() -> None:
    """Its gang would be back at once, in the place of whoever it was ended for."""
    for queues in ({}, {"b": Queue(), "c": Queue(weight=9.0)}, {"c": Queue(quota={"H100": 8})}):
        loop = Loop(fleet(1), replace(two_bookings(), preemption=Preemption(), queues=queues))
        loop.running = [gang("b-1", (0, ALL), queue="b")]
        loop.submit(facts("c-1", queue="c", priority=HIGH))
        loop.steps(30)
        assert loop.evicted == []


def test_before_a_booking_its_queue_is_not_ended_for_what_would_run_into_it() -> None:
    """It would be ended in turn when the booking begins. What is done by then takes what it may take."""
    ran = replace(gang("theirs", (0, ALL), priority=LOW, queue="vip"), facts=limited("theirs", 2 * HOUR, 8))
    ran = replace(ran, facts=replace(ran.facts, queue="vip", priority=LOW, preemptible=True))
    nodes, policy = fleet(1, held=[ran]), booked(AT_6, AT_8, 8)
    for limit_ms, is_ended in ((3 * HOUR, False), (None, False), (2 * HOUR, True)):
        high = replace(limited("high", limit_ms, 8), priority=HIGH)
        assert bool(decided(nodes, [ran], high, policy=policy).evictions) is is_ended
        both = decided(nodes, [ran], replace(high, job=JobId("long"), limit_ms=None), high, policy=policy)
        assert [evicted.claimant for evicted in both.evictions] == (["high"] if is_ended else []), "whoever asked before"
    far = booked("1970-01-09T04:00Z", "1970-01-10T04:00Z", 8)
    assert decided(nodes, [ran], replace(facts("high", 8), priority=HIGH), policy=far).evictions, "it gets a day done"
    reclaims = replace(policy, queues={**policy.queues, "own": Queue(quota={"H100": 8})})
    assert not decided(nodes, [ran], facts("owner", 8, queue="own"), policy=reclaims).evictions


def test_beside_what_is_booked_of_a_node_others_are_ended_as_ever() -> None:
    both = [("theirs", range(4), "vip"), ("low", range(4, 8), "default")]
    running = [
        replace(gang(name, (0, at), queue=queue), facts=replace(limited(name, 2 * HOUR, 4), queue=queue))
        for name, at, queue in both
    ]
    running = [replace(one, facts=replace(one.facts, priority=LOW)) for one in running]
    for count, ends in ((4, ["low"]), (8, [])):
        high = replace(limited("high", 9 * HOUR, count), priority=HIGH)
        plan = decided(fleet(1, held=running), running, high, policy=booked(AT_6, AT_8, 4))
        assert [evicted.job for evicted in plan.evictions] == ends


def test_a_higher_job_of_a_queue_takes_what_is_booked_for_it_from_its_own() -> None:
    loop = Loop(fleet(1), two_bookings())
    loop.running = [gang("b-1", (0, ALL), queue="b")]
    loop.submit(facts("b-2", queue="b", priority=HIGH))
    loop.steps(30)
    assert [(job, cause) for _, job, cause in loop.evicted] == [("b-1", "priority")]


def test_what_a_queue_has_beyond_its_booking_may_be_ended_for_anothers() -> None:
    loop = Loop(fleet(2), two_bookings())
    loop.running = [gang("b-1", (0, ALL), queue="b"), gang("b-2", (1, ALL), queue="b")]
    loop.submit(facts("a-1", queue="a", priority=LOW))
    loop.steps(10)
    assert [(job, cause) for _, job, cause in loop.evicted] == [("b-1", "booking")]
    assert loop.where("a-1") == ["n00"] and loop.where("b-2") == ["n01"]


def test_a_booking_of_more_than_there_is_or_of_another_type_breaks_nothing() -> None:
    assert where(decided(fleet(2), [], facts("next", 8), policy=booked(AT_6, AT_8, 4_000)), "next") is None
    elsewhere = Policy(bookings={"b": Booking(queue="vip", devices="B200:8", start=AT_6, end=AT_8)})
    assert where(decided(fleet(2), [], facts("next", 8), policy=elsewhere), "next") is not None


def test_a_head_that_needs_booked_nodes_has_them_kept_as_of_the_end_of_the_booking() -> None:
    """Before and while it lasts: what is done by then goes first, and what runs for longer does not pass the head."""
    for start, end in ((AT_6, AT_8), (UTC_NOW, AT_8)):
        for limit_ms, passes in ((4 * HOUR, True), (4 * HOUR + 1, False), (None, False)):
            head, small = limited("head", 12 * HOUR, 8, 2), limited("small", limit_ms, 8)
            plan = decided(fleet(2), [], head, small, policy=booked(start, end, 8))
            assert isinstance(reason(plan, "head"), Kept)
            assert (where(plan, "small") is not None) is passes
            assert passes or reason(plan, "small") == Behind(JobId("head"), 2)
            assert [kept.start_ms for kept in plan.reservations if kept.job == "head"] == [None], "no start is promised"


def test_whose_booking_it_is_comes_before_a_head_that_waits_for_its_end() -> None:
    plan = decided(fleet(2), [], limited("head", 12 * HOUR, 8, 2), facts("theirs", 8, queue="vip"), policy=booked(UTC_NOW, AT_8, 8))
    assert where(plan, "theirs") is not None
    early = decided(fleet(2), [], limited("head", 12 * HOUR, 8, 2), facts("theirs", 8, queue="vip"), policy=booked(AT_6, AT_8, 8))
    assert where(early, "theirs") is None, "it may wait for its booking like others"


def test_long_jobs_do_not_pass_a_head_until_after_a_booking() -> None:
    loop = Loop(fleet(2), booked(AT_6, AT_8, 8), runs_ms={f"long-{number}": 3 * HOUR for number in range(12)})
    loop.submit(limited("head", 12 * HOUR, 8, 2))
    for number in range(12):
        loop.submit(limited(f"long-{number}", 5 * HOUR, 8))
        loop.steps(30)
    assert loop.where("head") == ["n00", "n01"]


def test_no_start_is_promised_to_a_head_that_would_run_into_a_booking_then() -> None:
    """It would be done in time, could it start now; the node comes free only in an hour and a half."""
    for ends_in_ms, promised_ms in ((90 * MINUTE, None), (30 * MINUTE, NOW + 30 * MINUTE)):
        running = [replace(gang("r", (0, ALL), priority=STANDARD), facts=limited("r", HOUR + ends_in_ms, 8))]
        limit_ms = 2 * HOUR if promised_ms is None else 90 * MINUTE
        plan = decided(fleet(1, held=running), running, limited("head", limit_ms, 8), policy=booked(AT_6, AT_8, 8))
        (kept,) = [one for one in plan.reservations if one.job == "head"]
        assert kept.start_ms == promised_ms


def test_spare_nodes_are_for_repairs() -> None:
    policy = Policy(spares={"H100": 1, "B200": 2})
    plan = decided(fleet(2), [], facts("next", 8, 2), policy=policy)
    said = reason(plan, "next")
    assert isinstance(said, Kept) and said.what.startswith("repairs")
    (kept,) = plan.reservations
    assert (kept.job, kept.what, len(kept.placement.slices)) == (None, said.what, 1)
    repair = PendingJob(facts("next", 8, 2), repair=True)
    (decision,) = schedule(Snapshot(NOW, fleet(2), (), (repair,), policy)).decisions
    assert isinstance(decision, Start)


def test_spares_come_together_again() -> None:
    """The one node that is not spare is busy, and the spare was used: what comes free first becomes it."""
    running = [gang("r", (0, range(6)), priority=STANDARD), gang("s", (1, range(2)), priority=STANDARD)]
    plan = decided(fleet(2, held=running), running, facts("one", 1), policy=Policy(spares={"H100": 1}))
    assert where(plan, "one") == ["n00"]


def test_nothing_is_kept_on_a_node_that_goes_away() -> None:
    """Neither could be started there: it would be kept from others for nothing, and the spare would be none."""
    for policy, other in ((Policy(spares={"H100": 1}), "n00"), (booked(UTC_NOW, AT_8, 8), "n01")):
        going = next(name for name in ("n00", "n01") if name != other)
        nodes = tuple(replace(node, closing_ms=NOW + HOUR if node.node == going else None) for node in fleet(2))
        (kept,) = [one for one in decided(nodes, [], facts("next", 8), policy=policy).reservations if one.job is None]
        assert [part.node for part in kept.placement.slices] == [other]
