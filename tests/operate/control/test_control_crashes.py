"""The control plane killed at every commit, and random chaos that ends in calm: nothing lost, nothing doubled, everything ends."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from phalanx.core.errors import Conflict, StoreUnavailable
from phalanx.core.events import AttemptPlaced, JobSubmitted, ModelRegistered
from phalanx.core.ids import AttemptId, NodeId, split_attempt
from phalanx.core.messages import StartRanks
from phalanx.core.reasons import NoNodes
from phalanx.core.records import CheckpointCommitted, ModelSaved
from phalanx.core.spec import Kind
from phalanx.core.states import Finished
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.rows import Commit
from phalanx.operate.control.store import Store
from phalanx.operate.control.tracked import lineage_of, outbox_entries
from tests.drawn import examples
from tests.operate.control.control_bench import LEASE_MS, Agent, Bench, a_spec, new_bench

pytestmark = pytest.mark.both_databases

MEMORY = Path("/dev/shm")


class Killed(BaseException):
    """kill -9 of the server process, as far as one thread can tell."""


Failure = Literal["killed before", "killed after", "answer lost", "answer lost, nothing to be read"]
FAILURES: tuple[Failure, ...] = get_args(Failure)


class FailingStore(Store):
    """The real store. Its n-th commit kills the process, right before or right after it became durable; or it becomes durable
    and fails all the same, and perhaps the database cannot even be asked."""

    def __init__(self, where: Path | str, at: int, failure: Failure) -> None:
        super().__init__(where)
        self.left = at
        self._failure = failure
        self._blind = 0

    def commit(self, epoch: int, commit: Commit) -> None:
        self.left -= 1
        if self.left == 0 and self._failure == "killed before":
            raise Killed
        super().commit(epoch, commit)
        if self.left == 0 and self._failure == "killed after":
            raise Killed
        if self.left == 0:
            self._blind = int(self._failure != "answer lost")
            raise StoreUnavailable("disk I/O error")

    def last_seq(self) -> int:
        if self._blind:
            self._blind -= 1
            raise StoreUnavailable("disk I/O error")
        return super().last_seq()


def revive(bench: Bench) -> None:
    bench.restart()
    for agent in bench.agents.values():
        agent.hello()


def failing(bench: Bench, at: int, failure: Failure) -> FailingStore:
    bench.store.close()
    store = FailingStore(bench.database, at, failure)
    bench.store, bench.control = store, Controller(store, bench.clock, bench.links, bench.settings)
    return store


def surviving(bench: Bench, act: Callable[[], object]) -> None:
    """`act`, and when the server is killed in it, `act` again on the next one: as every client and agent of ours does. Also when
    it says that the database did not answer."""
    try:
        act()
    except Killed:
        revive(bench)
        act()
    except StoreUnavailable:
        act()


class Script:
    """One deterministic story: a gang over two nodes loses a rank, resumes and registers a model; another job is cancelled."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.killed_rank = False

    def play(self) -> None:
        bench = self.bench
        for name in ("a", "b"):
            bench.add(name)
        for name in ("gang", "doomed"):
            spec = a_spec(name, gpus="2", num_nodes=2 if name == "gang" else 1)
            surviving(bench, lambda spec=spec: bench.control.submit(spec, "", spec.name, "ada"))  # type: ignore[misc] # loop variable bound
        for _ in range(40):
            bench.clock.sleep(100)
            surviving(bench, self._step)
            if len(bench.world.jobs) == 2 and not bench.world.open_jobs:
                return
        raise AssertionError(f"the story did not end: {dict(bench.world.open_jobs)}")

    def _step(self) -> None:
        self.bench.tick()
        for job in list(self.bench.world.open_jobs.values()):
            if job.spec.name == "doomed" and job.state.name == "running":
                self.bench.control.cancel(job.id, "ada")
        for agent in self.bench.agents.values():
            for attempt, report in list(agent.held.items()):
                match report.phase:
                    case "starting":
                        agent.run(attempt)
                    case "running" if attempt.startswith("gang"):
                        self._run_on(agent, attempt)

    def _run_on(self, agent: Agent, attempt: AttemptId) -> None:
        world = self.bench.world
        if attempt not in world.attempts or world.attempts[attempt].running_ms is None:
            return
        if not self.killed_rank:
            self._say(agent.node, attempt, 10, CheckpointCommitted(rank=0, step=5, path="/c", digest="c", size_bytes=1, at_ms=1))
            self.killed_rank = True
            agent.exit(attempt, {min(rank.rank for rank in agent.held[attempt].ranks): -9})
        elif split_attempt(attempt)[1] == 2:
            model = ModelSaved(rank=0, step=9, path="/m", weights_digest="w", metrics={"loss": 1.0}, lineage={}, at_ms=1)
            self._say(agent.node, attempt, 20, model)
            agent.end(attempt)

    def _say(self, node: NodeId, attempt: AttemptId, offset: int, fact: CheckpointCommitted | ModelSaved) -> None:
        self.bench.control.facts(node, attempt, 0, offset, [fact])


def told(bench: Bench) -> tuple[Any, ...]:
    """What a story came to, without when and in how many epochs."""
    bench.check()
    return (
        sorted((job.id, str(job.state)) for job in bench.world.jobs.values()),
        sorted((attempt.id, attempt.detail, len(attempt.checkpoints)) for attempt in bench.world.attempts.values()),
        sorted((model.name, model.version) for versions in bench.world.models.values() for model in versions),
        Counter(type(body).__name__ for body in bench.log()),
        sorted(attempt for agent in bench.agents.values() for attempt in agent.starts),
        [agent.held for agent in bench.agents.values()],
        sorted(json.dumps(entry | {"at_ms": 0}, sort_keys=True) for entry in outbox(bench)),
    )


def outbox(bench: Bench) -> list[dict[str, Any]]:
    """What the tracker would be told, in order."""
    return [row.entry for row in bench.store.pending_outbox(1_000_000)]


def fresh(home: Path, resend_ms: int) -> Bench:
    """With the outbox and lineage of the live server."""
    return new_bench(home, outbox_for=outbox_entries, lineage=lineage_of, resend_ms=resend_ms)


def outbox_of(story: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in story[-1]]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is one."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("resend_ms", [0, 2_000])
@pytest.mark.parametrize("failure", FAILURES)
def test_whatever_happens_at_any_commit_the_story_is_the_same(memory: Path, failure: Failure, resend_ms: int) -> None:
    bench = fresh(memory / "calm", resend_ms)
    counting = failing(bench, at=10_000, failure=failure)
    Script(bench).play()
    expected, commits = told(bench), 10_000 - counting.left
    bench.store.close()
    assert expected[0] == [
        ("doomed-2", str(Finished(1, "cancelled", "cancelled"))),
        ("gang-1", str(Finished(2, "succeeded", "every rank exited with code 0"))),
    ]
    assert commits > 8
    kinds = Counter(entry["kind"] for entry in outbox_of(expected))
    assert kinds == {"run_started": 3, "run_finished": 2, "model_version": 1}
    for at in range(1, commits + 1):
        bench = fresh(memory / f"{at}", resend_ms)
        store = failing(bench, at, failure)
        Script(bench).play()
        assert store.left <= 0, "it happened"
        assert told(bench) == expected, at
        bench.store.close()


def test_nothing_is_placed_on_a_node_before_it_reported_to_this_control_plane(bench: Bench) -> None:
    agent = bench.add("a")
    bench.tick()
    job = bench.submit()
    bench.restart()
    bench.tick(3)
    assert bench.state(job) == "pending"
    assert bench.control.waiting[job].reason == NoNodes(1)
    assert agent.got == []
    agent.hello()
    bench.tick()
    assert bench.state(job) == "starting"


def test_the_epoch_grows_and_commands_carry_it(bench: Bench) -> None:
    first = bench.control.epoch
    bench.restart()
    bench.restart()
    assert bench.control.epoch == first + 2
    agent = bench.add("a")
    bench.submit()
    bench.tick()
    (command,) = agent.got
    assert isinstance(command, StartRanks)
    assert command.epoch == first + 2


def test_ranks_that_run_through_a_restart_of_the_control_plane_are_adopted(bench: Bench) -> None:
    agent = bench.add("a")
    job = bench.submit()
    bench.tick()
    agent.run(AttemptId(f"{job}.1"))
    bench.tick()
    got = len(agent.got)
    revive(bench)
    bench.tick(3)
    assert bench.state(job) == "running"
    assert len(agent.got) == got
    agent.end(AttemptId(f"{job}.1"))
    bench.tick()
    assert bench.state(job) == "finished"


def test_an_end_reported_to_a_control_plane_that_died_is_not_lost(bench: Bench) -> None:
    agent = bench.add("a")
    job = bench.submit(a_spec(max_restarts=0))
    bench.tick()
    agent.run(AttemptId(f"{job}.1"))
    agent.end(AttemptId(f"{job}.1"), code=4)
    revive(bench)
    bench.tick()
    assert bench.job(job).state == Finished(1, "failed", "rank 0 exited with code 4")


# Chaos, then calm

OPERATIONS = (
    "submit", "tick", "tick", "run", "end", "fail", "hello", "renew", "cancel", "sleep", "restart", "revive", "cut", "mend",
    "deaf", "reboot", "replay", "kill",
)  # fmt: skip


class Chaos:
    """Random operations on a bench; every choice comes from the drawn numbers."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.old_messages: list[tuple[NodeId, object]] = []
        self.keys = 0
        for name in ("a", "b", "c"):
            bench.add(name)
        bench.tick()

    def do(self, operation: str, number: int) -> None:
        agents = list(self.bench.agents.values())
        agent = agents[number % len(agents)]
        held = list(agent.held)
        attempt = held[number // 3 % len(held)] if held else None
        match operation:
            case "submit":
                self._submit(number)
            case "tick":
                self.bench.tick()
                self.bench.world.held()
            case "cancel":
                self._cancel(number)
            case "sleep":
                self.bench.clock.sleep((number % 3) * LEASE_MS // 2 + 1)
            case "restart":
                self.bench.restart()
            case "revive":
                revive(self.bench)
            case "kill":
                failing(self.bench, 1, FAILURES[number % 4])
            case "run" | "end" | "fail":
                if attempt is not None and agent.held[attempt].phase != "ended":
                    self._move(agent, attempt, operation)
            case _:
                self._to_node(agent, operation)

    def _move(self, agent: Agent, attempt: AttemptId, operation: str) -> None:
        if operation == "run" and agent.held[attempt].phase == "starting":
            agent.run(attempt)
        elif operation != "run":
            agent.end(attempt, 1 if operation == "fail" else 0)

    def _to_node(self, agent: Agent, operation: str) -> None:
        match operation:
            case "hello":
                agent.hello()
            case "renew":
                agent.renew()
            case "cut":
                agent.down = True
            case "mend":
                agent.down = agent.deaf = False
                agent.hello()
            case "deaf":
                agent.deaf = True
            case "reboot":
                agent.held.clear()
                agent.boot += "'"
                agent.hello()
            case "replay":
                for attempt in list(agent.held):
                    agent.report(attempt)
                    agent.report(attempt)

    def _submit(self, number: int) -> None:
        self.keys += 1
        kinds: tuple[Kind, ...] = ("batch", "train", "service", "interactive")
        asked = {"gpus": str(1 + number % 2), "num_nodes": 1 + number % 3, "max_restarts": number % 4, "priority": number % 5}
        spec = replace(a_spec(f"j{self.keys}", **asked), kind=kinds[number % 4])  # type: ignore[arg-type] # a_spec's own arguments
        key = f"k{self.keys}"
        surviving(self.bench, lambda: self.bench.control.submit(spec, "", key, "ada"))

    def _cancel(self, number: int) -> None:
        jobs = list(self.bench.world.jobs)
        if jobs:
            try:
                self.bench.control.cancel(jobs[number % len(jobs)], "ada")
            except Conflict:
                assert jobs[number % len(jobs)] not in self.bench.world.open_jobs

    def heal(self) -> None:
        """Everything works again, and every job is let finish."""
        revive(self.bench)
        for agent in self.bench.agents.values():
            agent.down = agent.deaf = False
        for _ in range(400):
            self.bench.clock.sleep(1_000)
            for job in list(self.bench.world.open_jobs.values()):
                if job.spec.kind == "service" and job.stop is None:
                    self.bench.control.cancel(job.id, "ada")
            for agent in self.bench.agents.values():
                self._let_finish(agent)
            self.bench.tick()
            if not self.bench.world.open_jobs:
                return
        raise AssertionError(f"calm did not end it: {[(job.id, job.state) for job in self.bench.world.open_jobs.values()]}")

    def _let_finish(self, agent: Agent) -> None:
        agent.renew()
        for attempt, report in list(agent.held.items()):
            if report.phase == "starting":
                agent.run(attempt)
            elif report.phase == "running":
                agent.end(attempt)


def check_runs(bench: Bench) -> None:
    """The tracker is told once of each attempt that ran, and once of the end of each job that is over and ran."""
    entries = outbox(bench)
    started = [entry["attempt"] for entry in entries if entry["kind"] == "run_started"]
    assert sorted(started) == sorted(one.id for one in bench.world.attempts.values() if one.running_ms is not None)
    ran = {bench.world.attempts[attempt].job for attempt in started}
    finished = [entry["job"] for entry in entries if entry["kind"] == "run_finished"]
    assert sorted(finished) == sorted(ran - bench.world.open_jobs.keys())


def check_safety(bench: Bench) -> None:
    """No attempt placed twice, no model registered twice, no device held twice; the log is the world."""
    bench.check()
    placed = [body.attempt for body in bench.log(AttemptPlaced) if isinstance(body, AttemptPlaced)]
    assert len(placed) == len(set(placed))
    models = [body.attempt for body in bench.log(ModelRegistered) if isinstance(body, ModelRegistered)]
    assert len(models) == len(set(models))
    check_devices(bench)
    check_runs(bench)


def check_devices(bench: Bench) -> None:
    """Nobody thinks that a device is held twice, and on no node is it so."""
    bench.world.held()
    for agent in bench.agents.values():
        live = [attempt for attempt, report in agent.held.items() if report.phase != "ended"]
        devices = [device for attempt in live for device in agent.launches[attempt].devices]
        assert len(devices) == len(set(devices)), f"{agent.node}: two live attempts share a device: {live}"


@settings(max_examples=examples(40), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking takes minutes
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 59)), min_size=10, max_size=60), st.sampled_from([0, 2_000]))
def test_chaos_then_calm(operations: list[tuple[str, int]], resend_ms: int) -> None:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        bench = fresh(Path(folder) / "home", resend_ms)
        chaos = Chaos(bench)
        try:
            for operation, number in operations:
                try:
                    chaos.do(operation, number)
                except Killed:
                    revive(bench)
                except StoreUnavailable:
                    bench.tick()
                check_devices(bench)
            check_safety(bench)
            chaos.heal()
            check_safety(bench)
            submitted = [body.job for body in bench.log(JobSubmitted) if isinstance(body, JobSubmitted)]
            assert len(submitted) == len({job.rpartition("-")[0] for job in submitted}) == chaos.keys
            bench.tick(2)
            assert bench.world.held() == {}
            assert all(agent.held == {} for agent in bench.agents.values()), "everything is forgotten in the end"
        finally:
            bench.store.close()
