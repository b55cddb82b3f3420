"""What a queue was refused is heard again as long as nothing that it depends on is another now. It changes no decision."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from phalanx.core.devices import NodeSlice, Placement
from phalanx.core.ids import NodeId
from phalanx.core.reasons import OverBudget, OverLimit, OverQuota, Reason
from phalanx.decide.scheduler import Snapshot, schedule
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.plan import Plan, Wait
from phalanx.decide.scheduler.refusals import Refused
from phalanx.decide.scheduler.snapshot import PendingJob, Usage
from tests.decide.scheduler.sharing import HOUR, MINUTE, NOW, gang, job, world
from tests.decide.scheduler.test_memory import cancelled, ended, started

QUEUES: tuple[dict[str, dict[str, Any]], ...] = (
    {"a": {"limit": {"H100": 8}}, "b": {"limit": {"*": 12}}, "b-1": {"parent": "b", "limit": {"H100": 6, "*": 8}}},
    {
        "a": {"quota": {"H100": 6}, "borrow": False, "limit": {"*": 10}},
        "b": {"quota": {"*": 8}, "lend": False, "limit": {"H100": 12}},
        "b-1": {"parent": "b", "quota": {"H100": 4}, "limit": {"H100": 6}},
    },
    {
        "a": {"limit": {"H100": 8}, "budget": {"gpu_hours": 1, "at": "stop"}},
        "b": {"quota": {"H100": 10}, "limit": {"*": 14}, "budget": {"gpu_hours": 3, "at": "stop"}},
        "b-1": {"parent": "b", "limit": {"*": 8}, "borrow": False},
    },
)
NAMES = ("a", "b", "b-1", "none")


def asks(number: int, draw: random.Random) -> PendingJob:
    waited_ms = draw.choice((MINUTE, 29 * MINUTE, HOUR, 2 * HOUR))
    kind, count, nodes = draw.choice((None, "H100", "T4")), draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2, 3))
    more: dict[str, Any] = {"user": draw.choice(("ann", "bob")), "priority": draw.choice((0, 50, 80)), "kind": kind}
    one = job(f"j-{number}", draw.choice(NAMES), count, nodes, preemptible=draw.random() < 0.8, **more)
    shape = replace(one.facts.shape, min_nodes=draw.choice((0, 0, 1)))
    return replace(one, facts=replace(one.facts, shape=shape, submitted_ms=NOW - waited_ms))


def elastic(asked: PendingJob) -> PendingJob:
    return replace(asked, facts=replace(asked.facts, shape=replace(asked.facts.shape, min_nodes=1)))


def spent(draw: random.Random) -> dict[str, Usage]:
    return {queue: Usage(spent_ms=draw.choice((0, 1, 2, 3)) * HOUR) for queue in ("a", "b", "b-1")}


def changed(snapshot: Snapshot, plan: Plan, number: int, draw: random.Random) -> Snapshot:
    match draw.randrange(6):
        case 0:
            snapshot = ended(snapshot, draw)
        case 1:
            snapshot = cancelled(snapshot, draw)
        case 2:
            snapshot = started(snapshot, plan)
        case 3:
            snapshot = replace(snapshot, usage=spent(draw))
        case _:
            snapshot = replace(snapshot, pending=(*snapshot.pending, asks(number, draw)))
    return replace(snapshot, now_ms=snapshot.now_ms + draw.choice((0, 1_000, 2 * MINUTE)))


def crowded(draw: random.Random) -> Snapshot:
    """Most of it is held, and much is asked for."""
    gangs = [
        gang(
            f"r-{number}",
            draw.choice(NAMES),
            draw.choice((1, 2, 4)),
            kind=draw.choice(("H100", "T4")),
            priority=draw.choice((0, 0, 50)),
            user=draw.choice(("ann", "bob")),
        )
        for number in range(7)
    ]
    jobs = [asks(100 + number, draw) for number in range(14)]
    return world({"queues": draw.choice(QUEUES)}, gangs, jobs, 3, kinds=("H100", "T4"), usage=spent(draw))


def heard_again(memory: Memory, before: dict[tuple[int, str, bool], Refused]) -> list[Refused]:
    return [one for asked, one in memory.refusals.heard.items() if before.get(asked) is one]


def test_a_row_of_small_changes_is_decided_as_if_each_were_seen_first() -> None:
    """And most of what is refused is heard again, for each cause."""
    num_again, causes = 0, Counter[str]()
    for seed in range(60):
        draw, memory = random.Random(seed), Memory()
        snapshot, before = crowded(draw), dict[tuple[int, str, bool], Refused]()
        for number in range(8):
            plan = schedule(snapshot, memory)
            assert plan == schedule(snapshot), (seed, number)
            again = heard_again(memory, before)
            num_again += len(again)
            causes.update(cause for one in again for cause in {cause_of(reason) for reason in one.reasons})
            before = memory.refusals.heard
            snapshot = changed(snapshot, plan, number, draw)
    assert num_again > 500
    assert min(causes[cause] for cause in ("over_limit", "over_budget", "saved")) > 50, causes


def cause_of(reason: Reason) -> str:
    return "saved" if isinstance(reason, OverLimit | OverQuota) and "is saved" in reason.because else reason.kind


def follows(second: Snapshot, first: Snapshot) -> Snapshot:
    """What is equal is the same object, as whoever decides again and again has it."""
    known = {node.node: node for node in first.nodes}
    nodes = tuple(known[node.node] if known.get(node.node) == node else node for node in second.nodes)
    return replace(second, policy=first.policy if second.policy == first.policy else second.policy, nodes=nodes)


CHILD = {"b": {"limit": {"H100": 7}}, "b-1": {"parent": "b", "limit": {"H100": 6}}}
FIRM = {"b-1": {"quota": {"H100": 8}, "limit": {"H100": 10}, "borrow": False}}
SPENT = {"b-1": {"limit": {"*": 8}, "budget": {"gpu_hours": 1, "at": "stop"}}}
OLD: dict[str, Any] = {"since_ms": NOW - 2 * HOUR, "submitted_ms": NOW - 2 * HOUR}


def one(policy: dict[str, Any], gangs: Any, jobs: Any, kinds: tuple[str, ...] = ("H100",), hours: int = 0) -> Snapshot:
    usage = {"b-1": Usage(spent_ms=hours * HOUR)}
    return world({"queues": policy}, gangs, jobs, 12, kinds=kinds, usage=usage)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(
            one(CHILD, [gang("r-1", "b-1", 4)], [job("j-1", "b-1", 4)]),
            one(CHILD, [gang("r-2", "b-1", 2), gang("r-3", "b", 2)], [job("j-1", "b-1", 4)]),
            id="another limit with as much used",
        ),
        pytest.param(
            one(CHILD, [gang("r-1", "b-1", 4)], [job("j-1", "b-1", 4)]),
            one(CHILD, [gang("r-1", "b-1", 3)], [job("j-1", "b-1", 4)]),
            id="less is used",
        ),
        pytest.param(
            one(FIRM, [gang("r-1", "b-1", 6)], [job("j-1", "b-1", 4, **OLD), job("j-2", "b-1", 2)]),
            one(FIRM, [gang("r-1", "b-1", 6)], [job("j-1", "b-1", 8, **OLD), job("j-2", "b-1", 2)]),
            id="of the limit something is saved, not of the quota",
        ),
        pytest.param(
            one(FIRM, [gang("r-1", "b-1", 6)], [job("j-1", "b-1", 4, **OLD), job("j-2", "b-1", 2)]),
            one(FIRM, [gang("r-1", "b-1", 6)], [job("j-0", "b-1", 4, **OLD), job("j-2", "b-1", 2)]),
            id="saved for another",
        ),
        pytest.param(
            one(SPENT, [], [job("j-1", "b-1", 4)], hours=2),
            one(SPENT, [], [job("j-1", "b-1", 4)], hours=3),
            id="more is spent",
        ),
        pytest.param(
            one(CHILD, [gang("r-1", "b-1", 4)], [job("j-1", "b-1", 4)]),
            one(CHILD | {"b-1": {"parent": "b", "limit": {"H100": 5}}}, [gang("r-1", "b-1", 4)], [job("j-1", "b-1", 4)]),
            id="another limit in the policy",
        ),
        pytest.param(
            one(CHILD, [gang("r-1", "b-1", 4)], [job("j-1", "b-1", 4, kind=None)]),
            one(CHILD, [gang("r-1", "b-1", 4)], [job("j-1", "b-1", 4, kind=None)], ("H100", "T4")),
            id="nodes of another type",
        ),
        pytest.param(
            one(CHILD, [gang("r-1", "b-1", 5, priority=75)], [job("j-1", "b-1", 2, priority=75)]),
            one(CHILD, [gang("r-1", "b-1", 5, priority=0)], [job("j-1", "b-1", 2, priority=75)]),
            id="somebody lower may be ended",
        ),
        pytest.param(
            one(CHILD, [gang("r-1", "b-1", 3), gang("r-2", "b", 4)], [elastic(job("j-1", "b-1", 2, 2))]),
            one(CHILD, [gang("r-1", "b-1", 3)], [elastic(job("j-1", "b-1", 2, 2))]),
            id="fewer nodes fit the limit above",
        ),
    ],
)
def test_another_cause_is_another_answer(first: Snapshot, second: Snapshot) -> None:
    """Where what refused a job is another now, in whatever part, it is looked at anew."""
    memory, second = Memory(), follows(second, first)
    before = schedule(first, memory)
    assert any(isinstance(one, Wait) and isinstance(one.reason, OverLimit | OverQuota | OverBudget) for one in before.decisions)
    after = schedule(second, memory)
    assert after == schedule(second)
    assert after != before


def test_what_was_heard_again_stays_refused_for_the_whole_decision() -> None:
    """For a later job of that user too, though it gives up a claim in between. Nodes with both claims are cordoned."""
    claims = [Placement((NodeSlice(NodeId(f"h100-{number}"), (0, 1, 2)),)) for number in (5, 6)]
    jobs = [job(f"j-{number}", "b-1", 3, claim=claim) for number, claim in enumerate(claims, 1)]
    snapshot = one(CHILD, [gang("r-1", "b-1", 2)], jobs)
    nodes = tuple(replace(node, schedulable=node.node not in ("h100-5", "h100-6")) for node in snapshot.nodes)
    memory, snapshot = Memory(), replace(snapshot, nodes=nodes)
    first, second = schedule(snapshot, memory), schedule(snapshot, memory)
    assert first == second == schedule(snapshot)
    assert all(isinstance(one, Wait) and isinstance(one.reason, OverLimit) for one in first.decisions)
