"""Devices that gangs are ended for: claimed before anybody is, offered to nobody else, started on exactly, and given up in time."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.errors import IllegalTransition
from phalanx.core.events import AttemptPlaced, DevicesClaimed, JobEvicted
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.reasons import MakingRoom, NoRoom
from phalanx.core.spec import JobSpec
from phalanx.core.states import Finished, Paused, Pending, Stopping
from phalanx.decide.scheduler import Claim, Evict, Plan, Snapshot, Start, Wait
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.snapshots import snapshot
from phalanx.operate.control.views import why_view
from tests.operate.control.control_bench import Bench, a_spec

A, B = NodeId("a"), NodeId("b")
Decide = Callable[[Snapshot], Plan]


def on(node: NodeId, *devices: int, milli: int = 1000) -> Placement:
    return Placement((NodeSlice(node, devices, milli),))


def plan(*decisions: Start | Wait, evictions: tuple[Evict, ...] = (), claims: tuple[Claim, ...] = ()) -> Decide:
    return lambda _: Plan(decisions, evictions, claims)


IDLE = plan()


def evict(job: JobId, claimant: JobId, keeps: Placement | None = None, number: int = 1) -> Evict:
    return Evict(job, AttemptId(f"{job}.{number}"), claimant, "priority", 7, keeps)


def running(bench: Bench, *placements: Placement, **changes: object) -> list[JobId]:
    """A gang on each of these."""
    if not bench.agents:
        bench.add("a", count=4)
    jobs = []
    for number, placement in enumerate(placements):
        jobs.append(bench.submit(replace(a_spec(name=f"low{number}"), **changes)))  # type: ignore[arg-type] # a test's shorthand
        bench.tick(decide=plan(Start(jobs[-1], placement)))
        for part in placement.slices:
            bench.agents[part.node].run(AttemptId(f"{jobs[-1]}.1"))
    bench.tick(decide=IDLE)
    assert {bench.state(job) for job in jobs} == {"running"}
    return jobs


def stubborn(bench: Bench) -> None:
    """Nobody ends at once."""
    for agent in bench.agents.values():
        agent.deaf = True


def high(bench: Bench, name: str = "high", **changes: object) -> JobId:
    return bench.submit(replace(a_spec(name=name, priority=90), **changes))  # type: ignore[arg-type] # a test's shorthand


def test_a_gang_makes_room_and_the_job_starts_on_exactly_what_it_claimed(bench: Bench) -> None:
    [victim] = running(bench, on(A, 0, 1, 2))
    stubborn(bench)
    job, claim = high(bench), on(A, 2, 3)
    bench.tick(decide=plan(Wait(job, MakingRoom((victim,), 2), None), evictions=(evict(victim, job),), claims=(Claim(job, claim),)))
    kinds = [type(body) for body in bench.log() if isinstance(body, DevicesClaimed | JobEvicted)]
    assert kinds == [DevicesClaimed, JobEvicted]
    assert bench.job(victim).state == Stopping(1, on(A, 0, 1, 2), "preempt")
    assert bench.attempt(victim).evicted_for == job
    assert bench.job(job).claim == claim
    bench.tick(decide=plan(Start(job, claim)))
    assert bench.state(job) == "pending", "device 2 is still held"
    bench.agents["a"].end(AttemptId(f"{victim}.1"), -15)
    bench.tick(decide=plan(Start(job, on(A, 0, 1))))
    assert bench.state(job) == "pending", "it has a claim on other devices"
    bench.tick(decide=plan(Start(job, claim)))
    assert bench.log(AttemptPlaced)[-1] == AttemptPlaced(job, AttemptId(f"{job}.1"), claim, bench.attempt(job).master_port, 1)
    assert bench.job(job).claim is None
    record = bench.job(victim)
    assert (record.state, record.interruptions, record.evicted_ms) == (Pending(1), 1, (bench.clock.now_ms(),))
    assert bench.attempt(victim).detail == f"made room for {job}"


def test_nobody_is_ended_without_a_claim(bench: Bench) -> None:
    [victim] = running(bench, on(A, 0))
    job = high(bench)
    bench.tick(decide=plan(evictions=(evict(victim, job),)))
    bench.tick(decide=plan(evictions=(evict(victim, job),), claims=(Claim(job, None),)))
    bench.tick(decide=plan(evictions=(evict(victim, job),), claims=(Claim(JobId("other-9"), on(A, 0)),)))
    assert bench.log(JobEvicted) == []
    assert bench.state(victim) == "running"


@pytest.mark.parametrize("what", ["held", "claimed", "absent", "twice", "drained", "ended", "gone"])
def test_a_claim_that_cannot_come_true_ends_nobody(bench: Bench, what: str) -> None:
    """The plan is older than the world."""
    victim, other = running(bench, on(A, 0), on(A, 1))
    bench.add("b", count=1)
    bench.tick(decide=IDLE)
    job = high(bench)
    claim = on(A, 0, 1) if what == "held" else on(A, 0, 9) if what == "absent" else on(A, 0, 0) if what == "twice" else on(A, 0, 2)
    number = 1
    if what == "claimed":
        first = high(bench, "first")
        bench.tick(decide=plan(claims=(Claim(first, on(A, 2)),)))
    if what == "drained":
        bench.control.drain(A, "fans", "ada")
    if what == "gone":
        number = 2
    if what == "ended":
        bench.control.cancel(job, "ada")
    bench.tick(decide=plan(evictions=(evict(victim, job, number=number),), claims=(Claim(job, claim),)))
    assert bench.log(JobEvicted) == []
    assert bench.job(job).claim is None
    assert (bench.state(victim), bench.state(other)) == ("running", "running")


def test_a_claimed_device_is_offered_to_nobody_else(bench: Bench) -> None:
    bench.add("a", count=2)
    bench.tick(decide=IDLE)
    job, other = high(bench), high(bench, "other")
    bench.tick(decide=plan(claims=(Claim(job, on(A, 0)),)))
    bench.tick(decide=plan(Start(other, on(A, 0, 1)), claims=(Claim(other, on(A, 0)),)))
    assert bench.state(other) == "pending"
    assert bench.job(other).claim is None
    bench.tick(decide=plan(Start(other, on(A, 1)), Start(job, on(A, 0))))
    assert (bench.state(job), bench.state(other)) == ("starting", "starting")


@pytest.mark.parametrize("wish", ["cancel", "pause"])
def test_who_wants_it_no_more_claims_nothing(bench: Bench, wish: str) -> None:
    bench.add("a")
    bench.tick(decide=IDLE)
    job, other = high(bench), high(bench, "other")
    bench.tick(decide=plan(claims=(Claim(job, on(A, 0, 1)),)))
    getattr(bench.control, wish)(job, "ada")
    assert bench.job(job).claim is None
    bench.tick(decide=plan(Start(other, on(A, 0, 1))))
    assert bench.state(other) == "starting"


def test_a_plan_gives_a_claim_up_but_not_for_a_node_that_has_yet_to_report(bench: Bench) -> None:
    bench.add("a")
    bench.tick(decide=IDLE)
    job, other = high(bench), high(bench, "other")
    bench.tick(decide=plan(claims=(Claim(job, on(A, 0, 1)),)))
    bench.restart()
    give_up = plan(claims=(Claim(job, None),))
    bench.tick(decide=give_up)
    assert bench.job(job).claim == on(A, 0, 1), "every claim would be lost at each start of the control plane"
    bench.agents["a"].hello()
    bench.tick(decide=give_up)
    assert bench.job(job).claim is None
    bench.tick(decide=plan(Start(other, on(A, 0, 1))))
    assert bench.state(other) == "starting"


def test_a_claim_on_a_node_that_is_away_is_given_up(bench: Bench) -> None:
    bench.add("a")
    bench.tick(decide=IDLE)
    job = high(bench)
    bench.tick(decide=plan(claims=(Claim(job, on(A, 0, 1)),)))
    for _ in range(20):
        bench.clock.sleep(1_000)
        bench.tick(decide=plan(claims=(Claim(job, None),)))
    assert not bench.world.nodes[A].up
    assert bench.job(job).claim is None


def test_a_claim_on_a_device_that_is_no_more_is_given_up_whatever_the_plan_says(bench: Bench) -> None:
    agent = bench.add("a")
    bench.tick(decide=IDLE)
    job = high(bench)
    bench.tick(decide=plan(claims=(Claim(job, on(A, 0, 1)),)))
    agent.shape = replace(agent.shape, devices=agent.shape.devices[:1])
    agent.hello()
    bench.tick(decide=plan(Start(job, on(A, 0, 1))))
    assert (bench.state(job), bench.job(job).claim) == ("pending", None)


def test_a_gang_shrinks_for_another_and_starts_again_on_what_it_keeps(bench: Bench) -> None:
    [elastic] = running(bench, on(A, 0, 1, 2, 3))
    stubborn(bench)
    job = high(bench)
    evictions = (evict(elastic, job, keeps=on(A, 0, 1)),)
    bench.tick(decide=plan(evictions=evictions, claims=(Claim(job, on(A, 2, 3)),)))
    assert bench.job(elastic).claim == on(A, 0, 1)
    assert [type(body) for body in bench.log()[-3:]] == [DevicesClaimed, DevicesClaimed, JobEvicted]
    bench.agents["a"].end(AttemptId(f"{elastic}.1"), -15)
    bench.tick(decide=plan(Start(job, on(A, 2, 3)), Start(elastic, on(A, 0, 1))))
    assert (bench.state(job), bench.state(elastic)) == ("starting", "starting")


def test_a_gang_grows_into_what_is_free_and_nobody_gets_it_meanwhile(bench: Bench) -> None:
    [elastic] = running(bench, on(A, 0))
    stubborn(bench)
    bench.tick(decide=plan(evictions=(evict(elastic, elastic, keeps=on(A, 0, 1, 2)),)))
    assert bench.job(elastic).evicted_ms == (), "it was not ended for others"
    seen = bench.control.observe()
    assert {node.node: node.free for node in seen.nodes} == {A: (3,)}
    other = high(bench)
    bench.tick(decide=plan(Start(other, on(A, 1))))
    assert bench.state(other) == "pending"
    bench.agents["a"].end(AttemptId(f"{elastic}.1"), -15)
    seen = bench.control.observe()
    assert [(job.facts.job, job.claim) for job in seen.pending] == [(elastic, on(A, 0, 1, 2)), (other, None)]
    assert seen.nodes[0].free == (0, 1, 2, 3), "now the claim of a waiting job says it"
    bench.tick(decide=plan(Start(elastic, on(A, 0, 1, 2))))
    assert bench.attempt(elastic).placement == on(A, 0, 1, 2)
    assert bench.world.attempts[AttemptId(f"{elastic}.1")].detail == "stopped to start again in another size"


def test_a_gang_that_claims_what_it_borrows_stays(bench: Bench) -> None:
    """Its queue's turn has come there: it goes on, and borrows no more. How often it was ended while it borrowed does not count."""
    borrowed, own = replace(on(A, 0), borrowed=True), on(A, 0)
    [job] = running(bench, borrowed)
    since_ms = bench.job(job).since_ms
    bench.tick(decide=plan(claims=(Claim(job, on(A, 1)),)))
    assert bench.attempt(job).placement == borrowed, "other devices need its end"
    bench.tick(decide=plan(claims=(Claim(job, own),)))
    assert (bench.state(job), bench.job(job).claim, bench.attempt(job).placement) == ("running", None, own)
    assert [gang.placement for gang in bench.control.observe().running] == [own]
    bench.tick(decide=plan(claims=(Claim(job, own),)))
    assert bench.log(DevicesClaimed) == [DevicesClaimed(job, own)], "an old plan says nothing new"
    [other] = running(bench, replace(on(A, 2), borrowed=True))
    stubborn(bench)
    bench.tick(decide=plan(evictions=(evict(other, other, keeps=on(A, 1)),)))
    assert bench.job(other).evicted_ms == ()
    bench.agents["a"].end(AttemptId(f"{other}.1"), -15)
    bench.tick(decide=plan(Start(other, on(A, 1))))
    assert bench.attempt(other).placement == on(A, 1)
    assert since_ms == bench.job(job).since_ms and bench.job(other).since_ms == bench.job(other).submitted_ms


def test_one_of_several_that_cannot_go_keeps_all_of_them(bench: Bench) -> None:
    one, two = running(bench, on(A, 0), on(A, 1))
    job = high(bench)
    evictions = (evict(one, job), evict(two, job, keeps=on(A, 9)))
    bench.tick(decide=plan(evictions=evictions, claims=(Claim(job, on(A, 0, 1)),)))
    assert bench.log(JobEvicted) == []
    other = high(bench, "other")
    bench.tick(decide=plan(Start(other, on(A, 2))))
    assert bench.state(other) == "starting", "nothing of the trial is left"


def test_a_gang_that_is_done_is_not_ended_and_succeeds(bench: Bench) -> None:
    [victim] = running(bench, on(A, 0))
    bench.agents["a"].exit(AttemptId(f"{victim}.1"), {0: 0})
    job = high(bench)
    bench.tick(decide=plan(evictions=(evict(victim, job),), claims=(Claim(job, on(A, 0)),)))
    assert bench.log(JobEvicted) == []
    assert bench.job(job).claim == on(A, 0), "its devices come free all the same"
    bench.agents["a"].end(AttemptId(f"{victim}.1"))
    bench.tick(decide=plan(Start(job, on(A, 0))))
    assert bench.job(victim).state == Finished(1, "succeeded", "every rank exited with code 0")
    assert bench.state(job) == "starting"


def test_an_evicted_trainer_that_gets_to_its_end_anyway_succeeds(bench: Bench) -> None:
    spec = JobSpec(name="lm", kind="train", recipe="llama")
    bench.add("a", count=4)
    bench.tick(decide=IDLE)
    victim = bench.submit(spec)
    bench.tick(decide=plan(Start(victim, on(A, 0))))
    bench.agents["a"].run(AttemptId(f"{victim}.1"))
    bench.tick(decide=IDLE)
    stubborn(bench)
    job = high(bench)
    bench.tick(decide=plan(evictions=(evict(victim, job),), claims=(Claim(job, on(A, 0)),)))
    bench.agents["a"].end(AttemptId(f"{victim}.1"), 0)
    bench.tick(decide=IDLE)
    assert bench.job(victim).state == Finished(1, "succeeded", "every rank exited with code 0")


def test_an_eviction_uses_up_no_restart_and_a_pause_of_the_evicted_holds(bench: Bench) -> None:
    one, two = running(bench, on(A, 0), on(A, 1), max_restarts=0)
    stubborn(bench)
    job = high(bench)
    evictions = (evict(one, job), evict(two, job))
    bench.tick(decide=plan(evictions=evictions, claims=(Claim(job, on(A, 0, 1)),)))
    bench.control.pause(two, "ada")
    for victim in (one, two):
        bench.agents["a"].end(AttemptId(f"{victim}.1"), -15)
    bench.tick(decide=IDLE)
    assert (bench.job(one).state, bench.job(two).state) == (Pending(1), Paused(1))


def test_the_snapshot_says_who_makes_room_for_whom_and_how_often(bench: Bench) -> None:
    [victim] = running(bench, on(A, 0))
    stubborn(bench)
    job = high(bench)
    bench.tick(decide=plan(evictions=(evict(victim, job),), claims=(Claim(job, on(A, 0)),)))
    seen = bench.control.observe()
    assert [(one.facts.job, one.stopping, one.evicted_for, one.evictions) for one in seen.running] == [(victim, True, job, 1)]
    bench.agents["a"].end(AttemptId(f"{victim}.1"), -15)
    assert [(one.facts.job, one.evictions) for one in bench.control.observe().pending] == [(victim, 1), (job, 0)]
    bench.clock.sleep(86_400_000)
    assert [one.evictions for one in snapshot(bench.world, frozenset(), bench.clock.now_ms(), {}).pending] == [0, 0]


def test_why_names_for_whom_it_makes_room(bench: Bench) -> None:
    [victim] = running(bench, on(A, 0))
    stubborn(bench)
    job = high(bench)
    bench.tick(decide=plan(evictions=(evict(victim, job),), claims=(Claim(job, on(A, 0)),)))
    said = why_view(bench.world, bench.job(victim), bench.control.waiting).sentence
    assert said.startswith(f"stops since it makes room for {job}; holds its devices")
    bench.agents["a"].end(AttemptId(f"{victim}.1"), -15)
    bench.tick(decide=plan(Wait(victim, NoRoom(2, 0, 2), 1)))
    said = why_view(bench.world, bench.job(victim), bench.control.waiting).sentence
    assert said.endswith(f"position 1 in queue default; its last attempt made room for {job}")


def test_a_gang_on_a_node_that_goes_away_says_so(bench: Bench) -> None:
    """It makes room for nobody, and not for itself either."""
    [gang] = running(bench, on(A, 0))
    stubborn(bench)
    leaves = Evict(gang, AttemptId(f"{gang}.1"), gang, "spot", 7, None)
    bench.tick(decide=plan(evictions=(leaves,)))
    assert "stops since one of its nodes goes away" in why_view(bench.world, bench.job(gang), bench.control.waiting).sentence
    bench.agents["a"].end(AttemptId(f"{gang}.1"), -15)
    bench.tick(decide=IDLE)
    assert bench.world.attempts[AttemptId(f"{gang}.1")].detail == "moved off a node that goes away"
    assert (bench.state(gang), bench.job(gang).evicted_ms) == ("pending", ())


def test_a_gang_that_is_named_twice_is_ended_once(bench: Bench) -> None:
    [victim] = running(bench, on(A, 0, 1))
    stubborn(bench)
    one, two = high(bench, "one"), high(bench, "two")
    evictions = (evict(victim, one), evict(victim, one), evict(victim, two))
    bench.tick(decide=plan(evictions=evictions, claims=(Claim(one, on(A, 0)), Claim(two, on(A, 1)))))
    assert bench.log(JobEvicted) == [JobEvicted(victim, AttemptId(f"{victim}.1"), one, "priority", 7)]
    assert (bench.job(one).claim, bench.job(two).claim) == (on(A, 0), on(A, 1))


def test_what_ends_or_is_over_claims_nothing(bench: Bench) -> None:
    [victim] = running(bench, on(A, 0))
    bench.control.cancel(victim, "ada")
    draft = Draft(bench.world)
    with pytest.raises(IllegalTransition, match="cannot claim"):
        draft.add(DevicesClaimed(victim, on(A, 1)), 1)


def test_a_claim_survives_kill_9(bench: Bench) -> None:
    [victim] = running(bench, on(A, 0))
    stubborn(bench)
    job = high(bench)
    waits = Wait(job, NoRoom(1, 0, 1), None)
    bench.tick(decide=plan(waits, evictions=(evict(victim, job),), claims=(Claim(job, on(A, 0)),)))
    before = bench.world
    bench.restart()
    assert bench.world == before
