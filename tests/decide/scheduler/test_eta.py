"""Predicted starts: what counting says, what is learnt of how far it is off, and that 80 % of starts fall inside."""

import math
import random
from dataclasses import replace

from phalanx.core import wire
from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.policy import Policy, Queue
from phalanx.core.reasons import (
    Backoff,
    Dependencies,
    Kept,
    MakingRoom,
    NeverFits,
    NoRoom,
    OutsideWindow,
    OverBudget,
    OverLimit,
    OverQuota,
    Reason,
)
from phalanx.decide.scheduler import JobFacts, NodeFacts, PendingJob, Plan, RunningJob, Shape, Snapshot, Start, Wait, schedule
from phalanx.decide.scheduler.why import history
from phalanx.decide.scheduler.why.eta import predict
from phalanx.decide.scheduler.why.history import CLASSES_MAX, History
from phalanx.decide.scheduler.why.lessons import Lessons
from phalanx.decide.scheduler.why.turnover import likely_waits

MINUTE = 60_000
HOUR = 60 * MINUTE
NOW = 1_000 * HOUR


def node(count: int = 8, free: int = 0) -> NodeFacts:
    return NodeFacts(NodeId("a"), tuple((index, "H100") for index in range(count)), tuple(range(free)), 64, 64, 2**40, 2**40, True)


def facts(name: str, count: int = 1, expected_ms: int | None = None, limit_ms: int | None = None, queue: str = "q") -> JobFacts:
    shape = Shape(DeviceRequest((), count))
    return JobFacts(JobId(name), shape, queue=queue, submitted_ms=NOW, expected_ms=expected_ms, limit_ms=limit_ms)


def gang(name: str, devices: tuple[int, ...], placed_ms: int, **known: int | None) -> RunningJob:
    job = facts(name, len(devices), known.get("expected_ms"), known.get("limit_ms"))
    return RunningJob(job, AttemptId(f"{name}.1"), Placement((NodeSlice(NodeId("a"), devices),)), placed_ms)


def waits(*jobs: JobFacts) -> Plan:
    return Plan(tuple(Wait(job.job, NoRoom(1, 0, 8), number + 1) for number, job in enumerate(jobs)))


def snapshot(running: tuple[RunningJob, ...], *pending: JobFacts, told: History | None = None, free: int = 0) -> Snapshot:
    return Snapshot(NOW, (node(free=free),), running, tuple(PendingJob(job) for job in pending), history=told or History())


def after_all(found: Snapshot, plan: Plan) -> dict[str, float]:
    return {job: waits[0] / HOUR for job, waits in likely_waits(found, plan)[0].items()}


def test_known_ends_say_when_each_of_the_line_starts() -> None:
    """Two gangs of four end in one and in three hours; the first of the line takes the first hole, the next the other one."""
    running = (gang("r-1", (0, 1, 2, 3), NOW - HOUR, expected_ms=2 * HOUR), gang("r-2", (4, 5, 6, 7), NOW, expected_ms=3 * HOUR))
    line = [facts(f"j-{number}", 4, expected_ms=10 * HOUR) for number in range(3)]
    at = after_all(snapshot(running, *line), waits(*line))
    assert 0.7 < at["j-0"] < 1.4
    assert 2.2 < at["j-1"] < 4.0
    assert 10 < at["j-2"] < 16, "it follows the first, which runs for ten hours"


def test_a_gang_is_over_at_its_limit() -> None:
    told = History()
    for _ in range(50):
        told = history.ran(told, "q", 8, 100 * HOUR, None)
    job = facts("j-1", 8)
    unlimited = after_all(snapshot((gang("r-1", tuple(range(8)), NOW),), job, told=told), waits(job))["j-1"]
    limited = after_all(snapshot((gang("r-1", tuple(range(8)), NOW, limit_ms=HOUR),), job, told=told), waits(job))["j-1"]
    assert limited <= 1.4 < 20 < unlimited


def test_smaller_jobs_may_pass_larger_ones() -> None:
    running = tuple(gang(f"r-{index}", (index,), NOW, expected_ms=(index + 1) * HOUR) for index in range(8))
    big, small = facts("big", 8, expected_ms=50 * HOUR), facts("small", 1, expected_ms=HOUR)
    in_line, passing = likely_waits(snapshot(running, big, small), waits(big, small))[0][JobId("small")]
    assert passing < 2 * HOUR < 8 * HOUR < in_line


def test_a_job_that_has_gone_since_it_was_decided_is_none_of_the_line() -> None:
    running = tuple(gang(f"r-{index}", (index,), NOW, expected_ms=(index + 1) * HOUR) for index in range(8))
    big, small = facts("big", 8, expected_ms=50 * HOUR), facts("small", 1, expected_ms=HOUR)
    in_line, _ = likely_waits(snapshot(running, small), waits(big, small))[0][JobId("small")]
    assert in_line == likely_waits(snapshot(running, small), waits(small))[0][JobId("small")][0]


def test_who_waits_for_its_queue_waits_for_its_queues_gangs() -> None:
    others = gang("r-1", (0, 1, 2, 3), NOW - HOUR, expected_ms=90 * HOUR)
    own = replace(gang("r-2", (4,), NOW, expected_ms=HOUR), facts=facts("r-2", 1, expected_ms=HOUR, queue="small"))
    job = facts("j-1", 1, queue="small")
    plan = Plan((Wait(job.job, OverLimit("small", "*", 1, 1, 1), 1),))
    assert after_all(snapshot((others, own), job), plan)["j-1"] < 1.4


def test_who_waits_for_what_nobody_is_guaranteed_waits_for_all_who_are_guaranteed_nothing() -> None:
    """Whatever their queues; not for gangs that have what their own queue is guaranteed."""
    nobodys = replace(gang("r-1", (0,), NOW, expected_ms=3 * HOUR), facts=facts("r-1", 1, expected_ms=3 * HOUR, queue="other"))
    own = replace(gang("r-2", (1,), NOW, expected_ms=HOUR), facts=facts("r-2", 1, expected_ms=HOUR, queue="part"))
    job = facts("j-1", 1, queue="small")
    plan = Plan((Wait(job.job, OverQuota("small", "H100", 1, 1, 1, "", for_ever=True, unpromised=True), 1),))
    policy = Policy(queues={"a": Queue(quota={"*": 7}), "part": Queue(parent="a")})
    assert 2.2 < after_all(replace(snapshot((nobodys, own), job, free=6), policy=policy), plan)["j-1"] < 4.0


def test_nothing_is_said_of_jobs_that_wait_for_no_devices() -> None:
    jobs = [facts(f"j-{number}") for number in range(3)]
    reasons: tuple[Reason, ...] = (NeverFits("x", "1", "0", "y"), Dependencies((JobId("z"),)), Backoff(90_000, 1, 1, ""))
    plan = Plan(tuple(Wait(job.job, reason, None) for job, reason in zip(jobs, reasons, strict=True)))
    etas = predict(snapshot((), *jobs), plan)
    assert set(etas) == {"j-2"}
    assert etas[JobId("j-2")].likely_ms >= NOW
    assert etas[JobId("j-2")].low_ms <= NOW + 90_000 <= etas[JobId("j-2")].high_ms


def test_nothing_is_expected_before_the_time_that_its_reason_names() -> None:
    first_ms = NOW + 7 * HOUR
    reasons: tuple[Reason, ...] = (
        OutsideWindow("nights", first_ms), OverBudget("q", "USD", 5.0, 5.0, first_ms), Backoff(7 * HOUR, 3, 1, ""),
    )  # fmt: skip
    jobs = [facts(f"j-{number}") for number in range(len(reasons))]
    plan = Plan(tuple(Wait(job.job, reason, 1) for job, reason in zip(jobs, reasons, strict=True)))
    found = predict(snapshot((), *jobs, free=8), plan)
    assert len(found) == len(reasons)
    assert all(first_ms <= eta.low_ms <= eta.high_ms for eta in found.values())


def test_what_is_kept_from_a_job_bounds_its_start_from_above() -> None:
    """Others may let go of other devices before. At the end of it there are two for the first two of the line, and none for the
    third."""
    until_ms = NOW + 7 * MINUTE
    jobs = [facts(f"j-{number}") for number in range(3)]
    plan = Plan(tuple(Wait(job.job, Kept("the booking 'demo'", until_ms), at + 1) for at, job in enumerate(jobs)))
    found = predict(snapshot((gang("r-1", (2, 3, 4, 5, 6, 7), NOW - 30 * HOUR),), *jobs, free=2), plan)
    assert [found[job.job].latest_ms for job in jobs] == [until_ms, until_ms, None]
    assert all(found[job.job].low_ms < until_ms <= found[job.job].high_ms for job in jobs)
    assert all(found[job.job].high_ms <= until_ms + MINUTE for job in jobs[:2])
    assert found[jobs[2].job].high_ms > until_ms + HOUR


def test_a_head_starts_at_the_latest_when_limits_have_ended_what_is_in_its_way() -> None:
    """All jobs of the past ran for a hundred hours; the limits say 20 minutes and half an hour. One that waits behind it is told
    that those before it end at their limits, too."""
    told = History()
    for _ in range(50):
        told = history.ran(told, "q", 4, 100 * HOUR, None)
    ends = {"r-1": 20 * MINUTE, "r-2": 30 * MINUTE}
    running = tuple(
        gang(name, devices, NOW, limit_ms=limit_ms)
        for (name, limit_ms), devices in zip(ends.items(), ((0, 1, 2, 3), (4, 5, 6, 7)), strict=True)
    )
    head, then = facts("head-1", 8, limit_ms=HOUR), facts("then-2", 8)
    found = snapshot(running, head, then, told=told)
    etas = predict(found, schedule(found))
    assert etas[JobId("head-1")].latest_ms == NOW + 30 * MINUTE
    assert NOW <= etas[JobId("head-1")].low_ms < etas[JobId("head-1")].high_ms == NOW + 31 * MINUTE
    assert etas[JobId("then-2")].latest_ms is None
    assert NOW + 90 * MINUTE < etas[JobId("then-2")].high_ms < NOW + 5 * HOUR
    loose = replace(running[0], facts=replace(running[0].facts, limit_ms=None))
    endless = replace(found, running=(loose, running[1]))
    unknown = predict(endless, schedule(endless))[JobId("head-1")]
    assert unknown.latest_ms is None
    assert unknown.high_ms > NOW + 5 * HOUR
    years = replace(running[0], facts=replace(running[0].facts, limit_ms=10**18))
    endless = replace(found, running=(years, running[1]))
    assert predict(endless, schedule(endless))[JobId("head-1")].latest_ms is None, "no news"
    outlived = replace(found, now_ms=NOW + 25 * MINUTE)
    assert predict(outlived, schedule(outlived))[JobId("head-1")].latest_ms is None, "these limits end nobody"


def test_no_time_is_named_for_a_job_that_starts_as_soon_as_gangs_let_go() -> None:
    job = facts("j-1")
    assert predict(snapshot((), job), Plan((Wait(job.job, MakingRoom((JobId("r-1"),), 1), None),))) == {}


def test_an_interval_begins_now_at_the_earliest_and_only_those_asked_for_get_one() -> None:
    line = [facts(f"j-{number}", 4) for number in range(5)]
    found, plan = snapshot((gang("r-1", tuple(range(8)), NOW - HOUR),), *line), waits(*line)
    etas = predict(found, plan)
    assert all(NOW <= eta.low_ms <= eta.high_ms for eta in etas.values())
    assert predict(found, plan, {JobId("j-3")}) == {JobId("j-3"): etas[JobId("j-3")]}


def test_a_history_travels_as_json_and_stays_small() -> None:
    told = History()
    for number in range(2 * CLASSES_MAX):
        told = history.ran(told, f"queue-{number}", 1, HOUR, 2 * HOUR)
    assert len(told.runs) == len(told.ratios) == CLASSES_MAX
    assert wire.loads(History, wire.dumps(History, told)) == told
    assert f"queue-{2 * CLASSES_MAX - 1}/s" in told.runs, "the newest is kept"


def test_bins_hold_what_belongs_there() -> None:
    assert history.run_bin(0) == history.run_bin(1_000) == 0
    assert history.run_bin(10**15) == history.RUN_BINS - 1
    assert history.ratio_bin(1.0) == history.ratio_bin(7.0) == history.RATIO_BINS - 1
    assert history.ratio_bin(0.0) == 0
    assert history.miss_bin(5_000, 5_000) == history.MISS_BINS // 2
    assert history.miss_bin(0, 10**15) == history.MISS_BINS - 1


def test_a_job_is_judged_by_what_was_shown_first_and_one_that_starts_at_once_by_nothing() -> None:
    lessons = Lessons()
    job = facts("j-1", 8)
    running = (gang("r-1", tuple(range(8)), NOW - HOUR, expected_ms=2 * HOUR),)
    first = snapshot(running, job)
    lessons.decided(first, waits(job))
    shown = lessons.history
    lessons.decided(replace(first, now_ms=NOW + MINUTE), waits(job))
    assert lessons.history == shown, "shown again is not shown first"
    outcome = lessons.started(JobId("j-1"), NOW + HOUR)
    assert outcome is not None
    assert outcome.shown.at_ms == NOW
    assert outcome.is_inside
    assert (lessons.history.scored, lessons.history.covered) == (1, 1)
    assert lessons.started(JobId("never-shown"), NOW) is None


def test_who_has_not_started_by_the_end_of_its_interval_is_missed_at_once_and_only_once() -> None:
    lessons, job = Lessons(), facts("j-1", 8)
    found = snapshot((gang("r-1", tuple(range(8)), NOW - HOUR, expected_ms=2 * HOUR),), job)
    lessons.decided(found, waits(job))
    before = lessons.history.level
    lessons.decided(replace(found, now_ms=NOW + 5_000 * HOUR), waits(job))
    assert (lessons.history.scored, lessons.history.covered) == (1, 0)
    assert lessons.history.level > before, "those to come are wider"
    outcome = lessons.started(JobId("j-1"), NOW + 5_001 * HOUR)
    assert outcome is not None
    assert not outcome.is_inside
    assert lessons.history.scored == 1


def test_what_is_watched_does_not_grow_with_jobs_that_come_and_go() -> None:
    lessons = Lessons()
    stays = facts("stays")
    for number in range(4_000):
        job = facts(f"j-{number}")
        lessons.decided(snapshot((), stays, job), waits(stays, job))
        lessons.forget(job.job)
    assert len(lessons._due) < 1_100
    assert lessons.started(stays.job, NOW) is not None, "it is watched all the while"


def test_an_interval_that_nobody_is_shown_is_not_judged() -> None:
    """Nearly every start is inside. Those that are shown would become the narrower for it, until too few of them hold."""
    lessons, job = Lessons(), facts("j-1", 8)
    found = snapshot((gang("r-1", tuple(range(8)), NOW - HOUR, expected_ms=90 * 24 * HOUR),), job)
    lessons.decided(found, waits(job))
    outcome = lessons.started(JobId("j-1"), NOW + 60 * 24 * HOUR)
    assert outcome is not None
    assert outcome.shown.is_vague
    assert (lessons.history.scored, lessons.history.level) == (0, History().level)
    assert lessons.history.misses, "how far it was off is learnt all the same"
    other = facts("j-2", 8)
    lessons.decided(replace(found, pending=(PendingJob(other),)), waits(other))
    lessons.decided(replace(found, now_ms=NOW + 10**13, pending=(PendingJob(other),)), waits(other))
    assert lessons.history.scored == 0


def test_a_cancelled_job_teaches_nothing() -> None:
    lessons, job = Lessons(), facts("j-1", 8)
    found = snapshot((gang("r-1", tuple(range(8)), NOW),), job)
    lessons.decided(found, waits(job))
    lessons.forget(JobId("j-1"))
    lessons.decided(replace(found, now_ms=NOW + 10**12, pending=()), Plan(()))
    assert lessons.history.scored == 0


def test_eight_of_ten_starts_fall_inside_intervals_that_are_not_endless() -> None:
    """One machine of eight, a line that comes and goes, run times over four orders of magnitude that nobody is told."""
    draw, lessons, now_ms = random.Random(7), Lessons(), NOW
    ends: list[tuple[int, JobFacts, int]] = []
    line: list[tuple[JobFacts, int]] = []
    outcomes = []
    for number in range(900):
        now_ms += round(draw.expovariate(1 / (7 * MINUTE)))
        size = draw.choice((1, 1, 1, 2, 4))
        line.append((facts(f"j-{number}", size), round(math.exp(draw.gauss(math.log(15 * MINUTE), 1.3)))))
        for end in [one for one in ends if one[0] <= now_ms]:
            ends.remove(end)
            lessons.ended(end[1], end[2])
        free = 8 - sum(job.shape.num_devices for _, job, _ in ends)
        while line and line[0][0].shape.num_devices <= free:
            job, ran_ms = line.pop(0)
            free -= job.shape.num_devices
            ends.append((now_ms + ran_ms, job, ran_ms))
            outcomes.append(lessons.started(job.job, now_ms))
        running = tuple(
            RunningJob(job, AttemptId("x"), Placement((NodeSlice(NodeId("a"), tuple(range(job.shape.num_devices))),)), end - ran)
            for end, job, ran in ends
        )
        found = replace(snapshot(running, *(job for job, _ in line), told=lessons.history, free=free), now_ms=now_ms)
        lessons.decided(found, waits(*(job for job, _ in line)))
    judged = [one for one in outcomes if one is not None]
    waited = sorted(one.started_ms - one.shown.at_ms for one in judged)
    widths = sorted(one.width_ms for one in judged)
    assert len(judged) > 300
    assert sum(one.is_inside for one in judged) / len(judged) >= 0.80
    assert widths[len(widths) // 2] < 4 * waited[len(waited) // 2]


def test_starts_of_the_same_plan_hold_devices_too() -> None:
    starting, job = facts("s-1", 8, expected_ms=5 * HOUR), facts("j-1", 8)
    plan = Plan((Start(starting.job, Placement((NodeSlice(NodeId("a"), tuple(range(8))),))), *waits(job).decisions))
    assert 4 < after_all(snapshot((), starting, job, free=8), plan)["j-1"] < 7
