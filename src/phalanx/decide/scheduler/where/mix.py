"""Which kinds of jobs come, as pods on one node each: what the packer expects of the future. Counted when they are submitted, or
else taken from the jobs that are there."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from phalanx.decide.scheduler.snapshot import Shape, Snapshot
from phalanx.decide.scheduler.where.columns import Pod, Popular
from phalanx.decide.scheduler.where.ground import CORES_SLACK

KINDS_MAX: Final = 256
"""Counted; when one more comes, all counts are halved, and the least popular are forgotten."""

SEEN_MAX: Final = 100_000
"""The same when so many jobs were seen: a fleet's work changes."""

NEWS: Final = 1.25
"""The mix is told anew when there are so many times as many jobs as when it was told last: whoever plans by it starts anew then."""

MIB: Final = 2**20
AMOUNT_MAX: Final = 2**31 - 1
"""What columns can hold: what is more fits nowhere, and of a node nobody needs more."""


def pod_of(shape: Shape) -> Pod:
    """Of one node's part. Rounded up, so that it fits where its pod does."""
    request = shape.request
    cpu_milli = min(AMOUNT_MAX, max(0, math.ceil((shape.cpus - CORES_SLACK) * 1000)))
    memory_mib = min(AMOUNT_MAX, -(-shape.memory_bytes // MIB))
    return Pod(cpu_milli, memory_mib, request.count, request.milli, frozenset(request.types))


def mix_of(snapshot: Snapshot) -> tuple[Popular, ...]:
    """What is known of earlier jobs, else of those that run and wait."""
    if snapshot.history.mix:
        return snapshot.history.mix
    counts = Counter[Pod]()
    for facts in (*(job.facts for job in snapshot.running), *(job.facts for job in snapshot.pending)):
        counts[pod_of(facts.shape)] += facts.shape.num_nodes
    return _ordered(counts.items())


class Seen:
    """Kinds of jobs as they are submitted. Mutable, of bounded size."""

    def __init__(self) -> None:
        self._counts = Counter[Pod]()
        self._total = 0
        self._told = 0

    def submitted(self, shape: Shape) -> tuple[Popular, ...] | None:
        """The mix, when it is to be told anew."""
        self._counts[pod_of(shape)] += shape.num_nodes
        self._total += shape.num_nodes
        if len(self._counts) > KINDS_MAX or self._total > SEEN_MAX:
            self._forget()
        if self._total < NEWS * self._told:
            return None
        self._told = self._total
        return _ordered(self._counts.items())

    def _forget(self) -> None:
        popular = _ordered(self._counts.items())[: KINDS_MAX // 2]
        self._counts = Counter({pod: max(1, seen // 2) for pod, seen in popular})
        self._total, self._told = self._counts.total(), 0


def _ordered(counts: Iterable[tuple[Pod, int]]) -> tuple[Popular, ...]:
    """The most popular first, whatever came first."""
    return tuple(Popular(*one) for one in sorted(counts, key=lambda one: (-one[1], _name(one[0]))))


def _name(pod: Pod) -> tuple[object, ...]:
    return pod.cpu_milli, pod.memory_mib, pod.num_gpu, pod.gpu_milli, sorted(pod.models)
