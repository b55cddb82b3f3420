"""What the scheduler's process is asked: a snapshot, as what is new in it since the one before. Pure but for its two ends, which
remember the same."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Policy
from phalanx.decide.scheduler import NodeFacts, PendingJob, RunningJob, Snapshot, Usage
from phalanx.decide.scheduler.line.attained import ServiceHistory
from phalanx.decide.scheduler.why.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The snapshot of `number`. Made of that of `number` - 1 if `follows`, else whole: then everything in it is new.

    nodes, running, pending: those that are new or say something new. left: nodes and jobs that are there no more. policy, usage,
    history, service: None where they are as before.
    """

    number: int
    follows: bool
    now_ms: int
    nodes: tuple[NodeFacts, ...] = ()
    running: tuple[RunningJob, ...] = ()
    pending: tuple[PendingJob, ...] = ()
    nodes_left: tuple[NodeId, ...] = ()
    running_left: tuple[JobId, ...] = ()
    pending_left: tuple[JobId, ...] = ()
    policy: Policy | None = None
    usage: Mapping[str, Usage] | None = None
    history: History | None = None
    service: ServiceHistory | None = None


Id = TypeVar("Id", NodeId, JobId)
Fact = TypeVar("Fact", NodeFacts, RunningJob, PendingJob)


@dataclass(slots=True)
class _Known:
    """A snapshot by names."""

    nodes: dict[NodeId, NodeFacts] = field(default_factory=dict)
    running: dict[JobId, RunningJob] = field(default_factory=dict)
    pending: dict[JobId, PendingJob] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    usage: Mapping[str, Usage] = field(default_factory=dict)
    history: History = field(default_factory=History)
    service: ServiceHistory = field(default_factory=ServiceHistory)


class Asker:
    """The end that asks. Its process may be another each time: one that starts anew knows nothing."""

    def __init__(self) -> None:
        self._number = 0
        self._known: _Known | None = None

    def question(self, snapshot: Snapshot) -> Question:
        """What is new since the last snapshot that was asked about; all of it, if nobody knows that one."""
        before, now = self._known, _by_name(snapshot)
        self._number += 1
        was = before or _Known()
        nodes, nodes_left = _new(was.nodes, now.nodes)
        running, running_left = _new(was.running, now.running)
        pending, pending_left = _new(was.pending, now.pending)
        self._known = now
        return Question(
            number=self._number,
            follows=before is not None,
            now_ms=snapshot.now_ms,
            nodes=nodes,
            running=running,
            pending=pending,
            nodes_left=nodes_left,
            running_left=running_left,
            pending_left=pending_left,
            policy=None if before and was.policy == now.policy else now.policy,
            usage=None if before and was.usage == now.usage else now.usage,
            history=None if before and was.history is now.history else now.history,
            service=None if before and was.service is now.service else now.service,
        )

    def forget(self) -> None:
        """The process knows nothing, or nobody knows what it knows: the next question is whole."""
        self._known = None


class Answerer:
    """The end that is asked."""

    def __init__(self) -> None:
        self._number = 0
        self._known = _Known()

    def snapshot(self, question: Question) -> Snapshot:
        """The whole of it; what is not new are the same objects as before. Raises ValueError when the one before is not known."""
        if question.follows and question.number != self._number + 1:
            raise ValueError(f"question {question.number} follows one that is not known; the last was {self._number}")
        if not question.follows:
            self._known = _Known()
        known = self._known
        _put(known.nodes, ((node.node, node) for node in question.nodes), question.nodes_left)
        _put(known.running, ((job.facts.job, job) for job in question.running), question.running_left)
        _put(known.pending, ((job.facts.job, job) for job in question.pending), question.pending_left)
        known.policy = known.policy if question.policy is None else question.policy
        known.usage = known.usage if question.usage is None else question.usage
        known.history = known.history if question.history is None else question.history
        known.service = known.service if question.service is None else question.service
        self._number = question.number
        return Snapshot(
            question.now_ms,
            tuple(known.nodes.values()),
            tuple(known.running.values()),
            tuple(known.pending.values()),
            known.policy,
            known.usage,
            known.history,
            known.service,
        )


def _by_name(snapshot: Snapshot) -> _Known:
    return _Known(
        {node.node: node for node in snapshot.nodes},
        {job.facts.job: job for job in snapshot.running},
        {job.facts.job: job for job in snapshot.pending},
        snapshot.policy,
        snapshot.usage,
        snapshot.history,
        snapshot.service,
    )


def _new(before: Mapping[Id, Fact], now: Mapping[Id, Fact]) -> tuple[tuple[Fact, ...], tuple[Id, ...]]:
    """Facts that are not the same objects, unless they say the same; and names that are gone."""
    new = tuple(fact for name, fact in now.items() if (was := before.get(name)) is not fact and was != fact)
    return new, tuple(name for name in before if name not in now)


def _put(known: dict[Id, Fact], new: Iterable[tuple[Id, Fact]], left: Iterable[Id]) -> None:
    for name in left:
        del known[name]
    known.update(new)
