"""Queues as people see them: what each and those below it hold, wait for, are guaranteed and have spent. Pure: a snapshot in."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from phalanx.core import wire
from phalanx.core.ids import JobId, NodeId
from phalanx.core.policy import Budget, Policy, Queue
from phalanx.core.units import MILLI
from phalanx.core.use_views import QuotaView
from phalanx.core.views import QueueView
from phalanx.decide.scheduler.quotas.lent import lent_to
from phalanx.decide.scheduler.snapshot import RunningJob, Snapshot, Usage

HOUR_MS = 3_600_000
ANY = "*"


Shown = Callable[[JobId], bool]
"""Whether somebody may see a job."""


def everything(_: JobId) -> bool:
    """Of whom nothing is hidden."""
    return True


def queue_views(snapshot: Snapshot, shown: Shown = everything) -> tuple[QueueView, ...]:
    """Every queue that is configured, has jobs, or has had devices; by name. Of jobs those that are `shown` are counted. What is
    held and spent is everybody's: a limit and a budget that several teams share are judged by all of it."""
    policy = snapshot.policy
    names = set(policy.queues) | set(snapshot.usage)
    names |= {job.facts.queue for job in snapshot.running} | {job.facts.queue for job in snapshot.pending}
    held: dict[str, Counter[str]] = {name: Counter() for name in names}
    beyond: dict[str, Counter[str]] = {name: Counter() for name in names}
    running: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    kinds = {node.node: dict(node.devices) for node in snapshot.nodes}
    for job in snapshot.running:
        of_job = _held(job, kinds)
        for name in chain(policy, job.facts.queue):
            running[name] += shown(job.facts.job)
            held[name].update(of_job)
            beyond[name].update(of_job if job.placement.borrowed else {})
    for pending in snapshot.pending:
        waiting.update(chain(policy, pending.facts.queue) if shown(pending.facts.job) else ())
    usage, lent = _usage(snapshot), lent_to(snapshot)
    for name in names:
        queue = policy.queues.get(name, Queue())
        if not queue.cells:
            beyond[name] = Counter(_beyond_quota(queue.quota, held[name]) if queue.quota else lent.get(name, {}))
    return tuple(
        _view(name, policy, held[name], beyond[name], running[name], waiting[name], usage.get(name, Usage()))
        for name in sorted(names)
    )


def quota_views(snapshot: Snapshot) -> tuple[QuotaView, ...]:
    """Of each queue, and of each type of device that it holds any of or has a quota or limit of."""
    return tuple(
        QuotaView(
            queue=queue.name,
            type=kind,
            held=queue.held.get(kind, 0.0),
            quota=queue.quota.get(kind),
            limit=queue.limit.get(kind),
            borrowed=queue.borrowed.get(kind, 0.0),
        )
        for queue in queue_views(snapshot)
        for kind in sorted({*queue.held, *queue.quota, *queue.limit})
    )


def chain(policy: Policy, queue: str) -> Iterator[str]:
    """The queue and those that it is part of, up to the root."""
    seen: set[str] = set()
    while queue and queue not in seen:
        seen.add(queue)
        yield queue
        queue = policy.queues.get(queue, Queue()).parent


def _held(job: RunningJob, kinds: Mapping[NodeId, Mapping[int, str]]) -> Counter[str]:
    """Thousandths of devices by type."""
    found: Counter[str] = Counter()
    for part in job.placement.slices:
        types = kinds.get(part.node, {})
        for index in part.devices:
            found[types.get(index, "?")] += part.milli
    return found


def _usage(snapshot: Snapshot) -> dict[str, Usage]:
    """Of each queue and those below it."""
    total: dict[str, Usage] = {}
    for queue, own in snapshot.usage.items():
        for name in chain(snapshot.policy, queue):
            before = total.get(name, Usage())
            total[name] = Usage(before.decayed + own.decayed, before.spent_ms + own.spent_ms, before.money + own.money)
    return total


def _view(
    name: str, policy: Policy, held: Counter[str], beyond: Counter[str], running: int, waiting: int, usage: Usage
) -> QueueView:
    """beyond: what of `held` is more than is guaranteed."""
    queue = policy.queues.get(name, Queue())
    return QueueView(
        name=name,
        parent=queue.parent,
        weight=queue.weight,
        running=running,
        waiting=waiting,
        held=_devices(dict(sorted(held.items()))),
        quota=dict(queue.quota),
        limit=dict(queue.limit),
        borrowed=_devices(dict(sorted(beyond.items()))),
        used_hours=usage.decayed / HOUR_MS,
        spent_hours=usage.spent_ms / HOUR_MS,
        spent_usd=usage.money,
        budget=wire.plain(Budget, queue.budget) if queue.budget else {},
    )


def _devices(milli: Mapping[str, int]) -> dict[str, float]:
    return {kind: count / MILLI for kind, count in milli.items()}


def _beyond_quota(quota: Mapping[str, int], held: Mapping[str, int]) -> dict[str, int]:
    """Thousandths that are held beyond the quota."""
    named = {kind: count - quota[kind] * MILLI for kind, count in sorted(held.items()) if kind in quota}
    rest = sum(count for kind, count in held.items() if kind not in quota) - quota.get(ANY, 0) * MILLI
    over = {kind: count for kind, count in named.items() if count > 0}
    return over | ({ANY: rest} if rest > 0 else {})
