"""Step 1, may a job run yet, and where could it ever: the device types (pools) in which an idle fleet would hold its gang."""

from collections.abc import Iterable, Sequence
from typing import Final

from phalanx.core.devices import CPU_SLOT
from phalanx.core.reasons import Backoff
from phalanx.decide.restarts import left_ms
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob

CORES_SLACK: Final = 1e-6
"""Cores are floats that were added up; a millionth of one is no reason to wait."""


def put_off(job: PendingJob, now_ms: int) -> Backoff | None:
    """Why the job's next attempt is not due yet; None when it is."""
    found = job.put_off
    wait_ms = left_ms(found.not_before_ms, now_ms) if found else 0
    return Backoff(wait_ms, found.attempts, found.within_ms, found.detail) if found and wait_ms else None


def device_types(nodes: Iterable[NodeFacts]) -> tuple[str, ...]:
    """The fleet's device types in order of preference: GPUs by name, CPU slots last."""
    found = {kind for node in nodes for _, kind in node.devices}
    return tuple(sorted(found, key=lambda kind: (kind == CPU_SLOT, kind)))


def asked_types(job: PendingJob, nodes: Iterable[NodeFacts]) -> tuple[str, ...]:
    """The types of this fleet that the job accepts, in order of preference. A gang runs on one of them."""
    return tuple(kind for kind in device_types(nodes) if job.request.type in (None, kind))


def num_devices(node: NodeFacts, kind: str) -> int:
    """Devices of a type that the node has, free or not."""
    return sum(1 for _, of_kind in node.devices if of_kind == kind)


def holds(has: float, asked: float) -> bool:
    """Whether a node's amount of something is enough. Asking for nothing is always met, also by a node that says nonsense."""
    return asked <= 0 or has + CORES_SLACK >= asked


def is_able(job: PendingJob, node: NodeFacts) -> bool:
    """Whether the node's agent can do all that the job needs: another would run it otherwise than it asks."""
    return job.needs <= node.features


def could_hold(job: PendingJob, kind: str, node: NodeFacts) -> bool:
    """Whether the node, however busy, away or drained now, would hold one node's share of the gang if it were idle."""
    return (
        is_able(job, node)
        and num_devices(node, kind) >= job.request.count
        and holds(node.cpus, job.cpus)
        and holds(node.memory_bytes, job.memory_bytes)
    )


def eligible_types(job: PendingJob, nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    """The accepted types in which enough nodes could hold a share; empty when the job can never fit."""
    return tuple(kind for kind in asked_types(job, nodes) if sum(could_hold(job, kind, node) for node in nodes) >= job.num_nodes)
