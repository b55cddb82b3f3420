"""The orders that share devices in time, through the whole decision: `shortest` and `blind`."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import JobId
from phalanx.core.policy import Order, Policy, Preemption, Queue
from phalanx.decide.scheduler import Plan, Snapshot, schedule
from phalanx.decide.scheduler.line.attained import ServiceHistory, learned
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, RunningJob, Shape
from phalanx.decide.scheduler.why.lessons import Lessons
from tests.decide.scheduler import test_properties, test_room_properties
from tests.decide.scheduler.closed_loop import HIGH, HOUR, MINUTE, NOW, Loop, facts, fleet, gang, name_of
from tests.decide.scheduler.snapshots import snapshots
from tests.decide.scheduler.test_room_properties import crowded
from tests.drawn import examples

SHORTEST, BLIND = Policy(order="shortest"), Policy(order="blind")


@dataclass
class Shared(Loop):
    """What jobs had so far is told, and what those teach that end."""

    lessons: Lessons = field(default_factory=Lessons)
    ended: dict[str, int] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        return replace(
            found,
            running=tuple(replace(one, **self._had(one.facts)) for one in found.running),
            pending=tuple(replace(one, **self._had(one.facts)) for one in found.pending),
            service=self.lessons.service,
        )

    def _had(self, of: JobFacts) -> dict[str, Any]:
        done_ms = self.done.get(of.job, 0)
        return {"done_ms": done_ms, "served_ms": done_ms * of.shape.num_devices}

    def _let_go(self) -> None:
        before = {one.facts.job: one.facts for one in self.running}
        super()._let_go()
        left = {one.facts.job for one in self.running} | {one.facts.job for one in self.pending}
        for job, of in before.items():
            if job not in left:
                self.ended[job] = self.now_ms
                self.lessons.finished(of, self.runs_ms[job] * of.shape.num_devices)

    def arrive(self, name: str, minutes: int, count: int = 8, num_nodes: int = 1, **more: Any) -> None:
        """A job that runs for so long, and of which that is known."""
        self.runs_ms[name] = minutes * MINUTE
        of = facts(name, count, num_nodes, expected_ms=minutes * MINUTE, **more)
        number = len(self.runs_ms)
        self.pending.append(PendingJob(replace(of, submitted_ms=self.now_ms, sequence=number)))

    def until(self, done: Callable[[], bool], most: int) -> None:
        for _ in range(most):
            if done():
                return
            self.step()
        raise AssertionError(f"not within {most} minutes")


def causes(plan: Plan) -> dict[str, str]:
    return {one.job: one.cause for one in plan.evictions}


# Over time


CROWD = (
    ("wide-1", 300, 8, 2, 0),
    ("long-2", 400, 8, 1, 0),
    ("long-3", 600, 8, 1, 1),
    ("half-4", 60, 4, 1, 5),
    ("one-5", 20, 1, 1, 6),
    ("one-6", 500, 1, 1, 7),
    ("half-7", 30, 4, 1, 9),
    ("wide-8", 15, 8, 2, 12),
    ("one-9", 10, 1, 1, 12),
    ("long-10", 90, 8, 1, 20),
    ("half-11", 240, 4, 1, 25),
    ("one-12", 5, 1, 1, 30),
    ("wide-13", 45, 8, 2, 33),
    ("one-14", 150, 1, 1, 60),
    ("long-15", 7, 8, 1, 61),
)
"""Name, minutes that it runs, devices on each node, nodes, and when it comes."""


def crowd(policy: Policy) -> Shared:
    """All of them have come and gone."""
    loop = Shared(fleet(2), policy)
    for minute in range(5000):
        for name, minutes, count, num_nodes, at in CROWD:
            if at == minute:
                loop.arrive(name, minutes, count, num_nodes)
        loop.step()
        if len(loop.ended) == len(CROWD):
            return loop
    raise AssertionError(f"{sorted(set(loop.runs_ms) - set(loop.ended))} never end")


def mean_minutes(loop: Shared) -> float:
    came = {name: NOW + (at + 1) * MINUTE for name, *_, at in CROWD}
    return sum(loop.ended[name] - came[name] for name in came) / len(came) / MINUTE


@pytest.mark.parametrize("order", ["shortest", "blind"])
def test_all_are_done_sooner_and_nobody_is_ended_for_nothing(order: Order) -> None:
    loop, plain = crowd(Policy(order=order)), crowd(Policy(order="fifo"))
    assert mean_minutes(loop) < 0.6 * mean_minutes(plain)
    assert {cause for _, _, cause in loop.evicted} == {"order"}
    assert len(loop.evicted) <= 2 * len(CROWD)
    victims = [job for _, job, _ in loop.evicted]
    assert max(victims.count(job) for job in victims) <= loop.policy.preemption.max_evictions
    claimants = {at_ms: {claimant for victim, claimant in loop.ended_for if victim == job} for at_ms, job, _ in loop.evicted}
    for at_ms, names in claimants.items():
        starts = [start for name in names for start in loop.started[name]]
        assert any(at_ms < start <= at_ms + 3 * MINUTE for start in starts), "whoever got the room is there soon"


def test_shortest_lets_nobody_take_turns() -> None:
    loop = crowd(SHORTEST)
    assert not {(claimant, victim) for victim, claimant in loop.ended_for} & loop.ended_for


def test_blind_tries_each_and_learns_how_long_they_are() -> None:
    """Of jobs that are alike some are short: a long one that had its chance makes room, though nobody told how long it is."""
    loop = Shared(fleet(1), BLIND)
    loop.arrive("long", 1000)
    loop.steps(60)
    for number in range(4):
        loop.arrive(f"short-{number}", 10)
    loop.until(lambda: len(loop.ended) == 4, 120)
    assert "long" not in loop.ended
    assert sum(len(ended) for ended in loop.lessons.service.sizes.values()) == 4
    loop.until(lambda: "long" in loop.ended, 1200)


# One decision


def held(*running: RunningJob, num_nodes: int = 1, policy: Policy = SHORTEST) -> Shared:
    return Shared(fleet(num_nodes), policy, running=list(running))


def long_gang(name: str, *slices: tuple[int, range], hours: int = 50, **more: Any) -> RunningJob:
    found = gang(name, *slices, **{"priority": 50, **more})
    return replace(found, facts=replace(found.facts, expected_ms=hours * HOUR))


def test_a_shorter_one_gets_the_room_in_two_steps() -> None:
    loop = held(long_gang("long", (0, range(8))))
    loop.arrive("short", 30)
    plan = loop.step()
    assert causes(plan) == {"long": "order"} and plan.evictions[0].claimant == "short"
    assert [claim.job for claim in plan.claims] == ["short"]
    loop.step()
    assert loop.where("short") and not loop.where("long")
    loop.until(lambda: bool(loop.where("long")), 40)


def test_a_little_shorter_is_not_enough() -> None:
    loop = held(long_gang("long", (0, range(8)), hours=10))
    loop.arrive("as-long", 8 * 60 + 30)  # an hour of the ten is over
    assert not loop.step().evictions


@pytest.mark.parametrize(
    ("change", "policy"),
    [
        ({"preemptible": False}, {}),
        ({"evictions": 8}, {}),
        ({"priority": 60}, {}),
        ({}, {"preemption": Preemption(enabled=False)}),
        ({}, {"queues": {"default": Queue(limit={"H100": 8})}}),
        ({"queue": "own"}, {"queues": {"own": Queue(quota={"H100": 8})}}),
    ],
)
def test_who_stays_whoever_is_shorter(change: dict[str, Any], policy: dict[str, Any]) -> None:
    own = {name: change[name] for name in change.keys() & {"preemptible", "priority", "queue"}}
    running = replace(long_gang("long", (0, range(8))), evictions=change.get("evictions", 0))
    running = replace(running, facts=replace(running.facts, **own))
    loop = held(running, policy=replace(SHORTEST, **policy))
    loop.arrive("short", 30)
    assert not loop.step().evictions


def test_no_more_are_ended_for_one_than_the_policy_says() -> None:
    ones = [long_gang(f"one-{number}", (0, range(number, number + 1))) for number in range(8)]
    loop = held(*ones, policy=replace(SHORTEST, preemption=Preemption(max_victims=7)))
    loop.arrive("short", 30)
    assert not loop.step().evictions
    loop.policy = SHORTEST
    assert set(causes(loop.step())) == {f"one-{number}" for number in range(8)}


def test_what_is_free_is_kept_until_the_last_in_the_way_is_old_enough() -> None:
    """Else a stream of small jobs, each too young to be ended, would keep a large one out for ever."""
    young = replace(long_gang("young", (0, range(4))), placed_ms=NOW)
    loop = held(young)
    loop.arrive("whole", 30)
    for number in range(20):
        loop.arrive(f"small-{number}", 600 + number, count=1)
    plan = loop.step()
    assert not plan.evictions and not any(one.kind == "start" for one in plan.decisions)
    assert [(one.job, one.start_ms) for one in plan.reservations][:1] == [("whole", NOW + 2 * MINUTE)]
    reasons = {str(one.job): one.reason.kind for one in plan.decisions if one.kind == "wait"}
    assert reasons["whole"] == "no_room" and reasons["small-0"] == "behind"
    loop.until(lambda: bool(loop.where("whole")), 3)


def test_nothing_stands_idle_behind_one_that_waits_for_its_turn() -> None:
    """It can take its place back at any time; only from what could not be ended it is kept."""
    loop = held(long_gang("first", (0, range(8)), hours=2), num_nodes=2)
    loop.arrive("wide", 40 * 60, num_nodes=2)
    loop.arrive("firm", 80 * 60, preemptible=False)
    loop.arrive("later", 90 * 60)
    plan = loop.step()
    assert [one.job for one in plan.decisions if one.kind == "start"] == ["later"]
    assert not plan.evictions


def test_a_device_that_another_share_still_holds_is_not_taken() -> None:
    """Of two shares of one device one is ending; who wants the whole device has to wait for the other one too."""
    halves = [gang(name, (0, [0])) for name in ("ends", "stays")]
    half = DeviceRequest(("H100",), 1, 500)
    running = [
        replace(
            one,
            facts=replace(one.facts, shape=Shape(half), preemptible=False),
            placement=Placement((NodeSlice(name_of(0), (0,), 500),)),
            stopping=one.facts.job == "ends",
        )
        for one in halves
    ]
    loop = held(*running, long_gang("long", (0, range(1, 8))))
    loop.stopping["ends"] = NOW + 10 * MINUTE
    loop.arrive("short", 30)
    plan = loop.step()
    assert not plan.claims and not plan.evictions


def test_cores_that_another_one_has_yet_to_let_go_of_are_not_used() -> None:
    """Four devices are free; the cores are those of a gang that is ending, and come free with its devices."""
    ending = long_gang("ends", (0, range(4)), stopping=True)
    ending = replace(ending, facts=replace(ending.facts, shape=replace(ending.facts.shape, cpus=60.0)))
    loop = held(ending)
    loop.stopping["ends"] = NOW + 10 * MINUTE
    loop.arrive("short", 30, count=4)
    first = loop.pending[0]
    loop.pending = [replace(first, facts=replace(first.facts, shape=replace(first.facts.shape, cpus=8.0)))]
    plan = loop.step()
    assert not any(one.kind == "start" for one in plan.decisions)
    loop.until(lambda: bool(loop.where("short")), 11)


def test_labels_and_tiers_say_where_it_may_take_a_place() -> None:
    loop = held(long_gang("old", (0, range(8))), long_gang("older", (1, range(8)), hours=90), num_nodes=2)
    loop.nodes = tuple(replace(node, labels={"room": f"r{number}"}) for number, node in enumerate(loop.nodes))
    loop.arrive("short", 30)
    first = loop.pending[0]
    shape = replace(first.facts.shape, where=(("room", "r0"),))
    loop.pending = [replace(first, facts=replace(first.facts, shape=shape))]
    assert causes(loop.step()) == {"old": "order"}, "though the other one runs for longer"


def test_a_pair_of_nodes_in_one_domain_is_taken_whole() -> None:
    gangs = [long_gang(f"g-{number}", (number, range(8)), hours=50 + number) for number in range(4)]
    loop = held(*gangs, num_nodes=4)
    loop.nodes = tuple(replace(node, labels={"domain": f"d{number % 2}"}) for number, node in enumerate(loop.nodes))
    loop.arrive("short", 30, num_nodes=2)
    first = loop.pending[0]
    loop.pending = [replace(first, facts=replace(first.facts, shape=replace(first.facts.shape, within="domain")))]
    assert set(causes(loop.step())) == {"g-1", "g-3"}


def test_without_an_expected_time_the_limit_counts_and_else_it_is_last() -> None:
    loop = held()
    asks = facts("unknown"), facts("limited", limit_ms=5 * HOUR), facts("known", expected_ms=6 * HOUR)
    loop.pending = [PendingJob(replace(one, sequence=number)) for number, one in enumerate(asks)]
    assert [one.job for one in loop.step().decisions] == ["limited", "known", "unknown"]


def test_priority_goes_before_it() -> None:
    loop = held(long_gang("long", (0, range(8)), hours=1))
    loop.arrive("high", 100 * 60, priority=HIGH)
    assert list(causes(loop.step())) == ["long"]


# Any fleet, any line


TIMES = st.sampled_from([None, MINUTE, HOUR, 50 * HOUR])
HISTORIES = st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(0, 40), st.sampled_from([MINUTE, HOUR])), max_size=6)


@st.composite
def shared_in_time(draw: st.DrawFn, orders: tuple[Order, ...] = ("shortest", "blind")) -> Snapshot:
    snapshot = draw(crowded() | snapshots())

    def told(one: Any) -> Any:
        known = replace(one.facts, expected_ms=draw(TIMES))
        return replace(one, facts=known, served_ms=draw(st.sampled_from([0, HOUR, 99 * HOUR])))

    history = ServiceHistory()
    for num_devices, sequence, served_ms in draw(HISTORIES):
        history = learned(history, num_devices, sequence, served_ms)
    return replace(
        snapshot,
        running=tuple(told(one) for one in snapshot.running),
        pending=tuple(told(one) for one in snapshot.pending),
        policy=replace(snapshot.policy, order=draw(st.sampled_from(orders))),
        service=history,
    )


VALID: tuple[Any, ...] = (
    test_properties.test_every_pending_job_gets_exactly_one_decision,
    test_properties.test_no_device_is_given_twice_and_shares_stay_within_the_device,
    test_properties.test_a_gang_is_whole_on_nodes_that_will_do_or_absent,
    test_properties.test_a_gang_lies_in_the_tiers_it_asks_for,
    test_properties.test_a_snapshot_that_travelled_is_decided_alike,
    test_properties.test_limits_hold_at_every_level,
    test_room_properties.test_nobody_is_ended_unless_a_placement_results,
    test_room_properties.test_who_is_ended_and_how_many,
)


@settings(max_examples=examples(150), deadline=None)
@given(shared_in_time())
def test_plans_are_as_valid_as_in_any_order(snapshot: Snapshot) -> None:
    for check in VALID:
        check.hypothesis.inner_test(snapshot)


@settings(max_examples=examples(60), deadline=None)
@given(shared_in_time(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_means_nothing(snapshot: Snapshot, shuffling: Any) -> None:
    test_properties.test_the_order_of_the_input_means_nothing.hypothesis.inner_test(snapshot, shuffling)  # type: ignore[attr-defined]


@settings(max_examples=examples(100), deadline=None)
@given(shared_in_time())
def test_whose_place_is_taken_goes_after_who_takes_it(snapshot: Snapshot) -> None:
    gangs = {one.facts.job: one for one in snapshot.running}
    jobs: dict[JobId, PendingJob] = {one.facts.job: one for one in snapshot.pending}
    for one in schedule(snapshot).evictions:
        if one.cause == "order":
            assert snapshot.policy.preemption.enabled
            assert gangs[one.job].facts.priority <= jobs[one.claimant].facts.priority
            assert gangs[one.job].evictions < snapshot.policy.preemption.max_evictions


@settings(max_examples=examples(100), deadline=None)
@given(shared_in_time(orders=("blind",)), TIMES)
def test_blind_reads_no_expected_time(snapshot: Snapshot, other_ms: int | None) -> None:
    def told(one: Any) -> Any:
        return replace(one, facts=replace(one.facts, expected_ms=other_ms))

    changed = replace(snapshot, running=tuple(map(told, snapshot.running)), pending=tuple(map(told, snapshot.pending)))
    assert schedule(changed) == schedule(snapshot)
