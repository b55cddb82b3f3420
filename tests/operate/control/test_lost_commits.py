"""A commit that becomes durable and whose answer is lost: the control plane finds out, says so honestly, and goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from phalanx.core.errors import Bug, StoreUnavailable
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.records import CheckpointCommitted
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.fold import Changes
from phalanx.operate.control.rows import Commit
from phalanx.operate.control.store import Store
from phalanx.operate.control.world import World
from tests.operate.control.control_bench import Bench, a_spec

pytestmark = pytest.mark.both_databases

FIRST = AttemptId("tiny-1.1")


class LossyStore(Store):
    """The real store, in trouble: commits are done and then `error` is raised; while `blind`, nothing can be read."""

    error: Exception | None = None
    blind = False

    def commit(self, epoch: int, commit: Commit) -> None:
        super().commit(epoch, commit)
        if self.error is not None:
            raise self.error

    def last_seq(self) -> int:
        if self.blind:
            raise StoreUnavailable("disk I/O error")
        return super().last_seq()

    @contextmanager
    def trouble(self, error: Exception | None = None, blind: bool = False) -> Iterator[None]:
        self.error, self.blind = error or StoreUnavailable("disk I/O error at COMMIT"), blind
        yield
        self.error, self.blind = None, False


@pytest.fixture
def lossy(bench: Bench) -> LossyStore:
    """The bench on such a store."""
    bench.store.close()
    store = LossyStore(bench.database, busy_ms=50)
    bench.store, bench.control = store, Controller(store, bench.clock, bench.links, bench.settings)
    return store


def test_a_commit_that_was_done_though_it_failed_counts_as_done(bench: Bench, lossy: LossyStore) -> None:
    agent = bench.add("a")
    with lossy.trouble():
        job = bench.submit()
        bench.tick()
        agent.run(FIRST)
        bench.tick()
        saved = CheckpointCommitted(rank=0, step=1, path="/c", digest="d", size_bytes=1, at_ms=5)
        bench.control.facts(agent.node, FIRST, 0, 10, [saved])
        assert bench.control.records_offset(FIRST, 0) == 10
        bench.control.cancel(job, "ada")
        bench.check()
    bench.tick(2)
    assert bench.state(job) == "finished"
    assert len(bench.attempt(job).checkpoints) == 1


def test_a_commit_that_nobody_can_look_up_is_looked_up_before_the_next_write(bench: Bench, lossy: LossyStore) -> None:
    agent = bench.add("a")
    bench.tick()
    with lossy.trouble(blind=True):
        with pytest.raises(StoreUnavailable, match="at COMMIT; whether it was done is known once the database answers again"):
            bench.submit(key="k")
        for write in (bench.submit, bench.tick, lambda: bench.control.cancel(JobId("tiny-1"), "ada")):
            with pytest.raises(StoreUnavailable):
                write()
    assert bench.submit(key="k") == "tiny-1", "the first call had been done after all"
    assert len(bench.world.jobs) == 1
    bench.tick()
    with lossy.trouble(blind=True), pytest.raises(StoreUnavailable):
        bench.control.cancel(JobId("tiny-1"), "ada")
    bench.control.cancel(JobId("tiny-1"), "ada")
    bench.tick(2)
    assert bench.state(JobId("tiny-1")) == "finished"
    assert agent.held == {}
    for number in range(3):
        assert bench.submit(a_spec(f"next-{number}"))


def test_facts_whose_commit_nobody_could_look_up_are_not_told_twice(bench: Bench, lossy: LossyStore) -> None:
    agent = bench.add("a")
    job = bench.submit()
    bench.tick()
    saved = CheckpointCommitted(rank=0, step=1, path="/c", digest="d", size_bytes=1, at_ms=5)
    with lossy.trouble(blind=True), pytest.raises(StoreUnavailable):
        bench.control.facts(agent.node, FIRST, 0, 10, [saved])
    bench.control.facts(agent.node, FIRST, 0, 10, [saved])
    assert bench.control.records_offset(FIRST, 0) == 10
    assert bench.attempt(job).facts == 1


@pytest.mark.parametrize("blind", [False, True])
def test_an_end_whose_commit_was_lost_restarts_the_gang_once(bench: Bench, lossy: LossyStore, blind: bool) -> None:
    agent = bench.add("a")
    job = bench.submit()
    bench.tick()
    agent.run(FIRST)
    agent.end(FIRST, 1)
    with lossy.trouble(blind=blind):
        try:
            bench.control.observe()
        except StoreUnavailable:
            assert blind
    bench.restarted()
    assert bench.job(job).attempts == (FIRST, "tiny-1.2")
    assert agent.starts == [FIRST, "tiny-1.2"]


def test_whatever_ended_a_commit_the_next_write_knows_what_it_left(bench: Bench, lossy: LossyStore) -> None:
    with lossy.trouble(MemoryError("anything")), pytest.raises(MemoryError):
        bench.submit(key="k")
    assert bench.submit(key="k") == "tiny-1"


def test_a_statement_that_the_database_refuses_is_a_bug_and_no_reason_to_try_again(bench: Bench) -> None:
    bench.submit()
    bench.add("a")
    bench.tick()
    with pytest.raises(Bug, match=r"(?i)unique"):
        bench.store.commit(bench.control.epoch, Commit(bench.events(), Changes()))
    record = replace(bench.world.nodes[NodeId("a")], up=None)  # type: ignore[arg-type] # on purpose
    changes = Changes(nodes={NodeId("a"): record})
    with pytest.raises(Bug, match=r"(?i)not[ -]null"):
        bench.store.commit(bench.control.epoch, Commit((), changes))
    assert bench.store.load() == bench.world != World()
