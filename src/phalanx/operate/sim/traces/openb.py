"""Alibaba's cluster of shared GPUs (2023): 1,213 nodes with GPUs and 8,152 pods, many of which want a part of one. Five mixes."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phalanx.operate.sim.traces.errors import TraceError
from phalanx.operate.sim.traces.rows import Row, rows
from phalanx.operate.sim.traces.trace import Trace, TraceJob

NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
TIMED_COLUMNS: Final = (*POD_COLUMNS, "creation_time", "deletion_time")
"""Of the mixes that tell when a pod came and went, in seconds; multigpu20 does not."""

SOURCE: Final = "hkust-adsl/kubernetes-scheduler-simulator, of alibaba/clusterdata cluster-trace-gpu-v2023, Apache-2.0"
WHOLE_MILLI: Final = 1000
NODE_GPUS_MAX: Final = 64
AMOUNT_MAX: Final = 2**31 - 1
"""Milli-CPUs and MiB, so that they fit the scheduler's columns."""


@dataclass(frozen=True, slots=True)
class OpenbNode:
    """num_gpu: 0 where model is empty."""

    name: str
    cpu_milli: int
    memory_mib: int
    num_gpu: int
    model: str


@dataclass(frozen=True, slots=True)
class OpenbPod:
    """gpu_milli: of each of its GPUs, 1000 for a whole one, 0 for none. models: the only ones it takes; empty for any."""

    name: str
    cpu_milli: int
    memory_mib: int
    num_gpu: int
    gpu_milli: int
    models: frozenset[str]


def read_nodes(path: Path) -> tuple[OpenbNode, ...]:
    """In the order of the file. Raises TraceError for a row that is no node, by its line; NotFound."""
    nodes = tuple(_node(row) for row in rows(path, NODE_COLUMNS))
    _must_have(path, nodes, (node.name for node in nodes), "node")
    return nodes


def read_pods(path: Path) -> tuple[OpenbPod, ...]:
    """In the order of the file. Raises TraceError for a row that is no pod, by its line; NotFound."""
    pods = tuple(_pod(row) for row in rows(path, POD_COLUMNS))
    _must_have(path, pods, (pod.name for pod in pods), "pod")
    return pods


def read(file: Path) -> Trace:
    """Pods with GPUs as jobs, from their creation to their end. Raises TraceError, also for a mix without times."""
    found = [(row, _pod(row)) for row in rows(file, TIMED_COLUMNS)]
    jobs = (_job(row, pod) for row, pod in found if pod.num_gpu)
    name = f"openb/{file.name.partition('.')[0].removeprefix('pods_')}"
    return Trace.of(name, jobs, SOURCE, sum(not pod.num_gpu for _, pod in found), skipped_for="no_gpu").must_have_jobs(file)


def _job(row: Row, pod: OpenbPod) -> TraceJob:
    created_s, deleted_s = row.whole("creation_time"), row.whole("deletion_time")
    if deleted_s < created_s:
        raise row.error("deletion_time", f"write {created_s} or more: a pod ends after its creation")
    return TraceJob(
        name=pod.name,
        submit_ms=created_s * 1000,
        duration_ms=max(1, (deleted_s - created_s) * 1000),
        devices=pod.num_gpu,
        types=tuple(sorted(pod.models)),
        milli=pod.gpu_milli,
        cpus=pod.cpu_milli / 1000,
        memory_bytes=pod.memory_mib * 2**20,
        line=row.line,
    )


def _node(row: Row) -> OpenbNode:
    num_gpu, model = row.count("gpu"), row.text("model").strip()
    if num_gpu > NODE_GPUS_MAX:
        raise row.error("gpu", f"write {NODE_GPUS_MAX} or less")
    if bool(num_gpu) != bool(model):
        raise row.error("model", "name the GPUs' model, and nothing for a node without GPUs")
    return OpenbNode(_name(row, "sn"), _amount(row, "cpu_milli", 1), _amount(row, "memory_mib", 1), num_gpu, model)


def _pod(row: Row) -> OpenbPod:
    num_gpu, milli = row.count("num_gpu"), row.count("gpu_milli")
    if num_gpu > NODE_GPUS_MAX:
        raise row.error("num_gpu", f"write {NODE_GPUS_MAX} or less")
    if milli > WHOLE_MILLI or (num_gpu == 0) != (milli == 0) or (num_gpu > 1 and milli != WHOLE_MILLI):
        raise row.error("gpu_milli", "write 0 without a GPU, 1 to 1000 for one, 1000 for several")
    models = frozenset(part.strip() for part in row.cells.get("gpu_spec", "").split("|") if part.strip())
    return OpenbPod(_name(row, "name"), _amount(row, "cpu_milli"), _amount(row, "memory_mib"), num_gpu, milli, models)


def _amount(row: Row, column: str, least: int = 0) -> int:
    amount = row.whole(column, least)
    if amount > AMOUNT_MAX:
        raise row.error(column, f"is absurdly large; write {AMOUNT_MAX} or less")
    return amount


def _name(row: Row, column: str) -> str:
    name = row.text(column).strip()
    if not name:
        raise row.error(column, "write a name")
    return name


def _must_have(path: Path, found: tuple[object, ...], names: Iterable[str], kind: str) -> None:
    """At least one, and none twice: ties are broken by name."""
    if not found:
        raise TraceError(path.name, None, f"has no {kind}; name a trace with at least one")
    seen = set[str]()
    for name in names:
        if name in seen:
            raise TraceError(path.name, name, f"names two {kind}s so; give each a name of its own")
        seen.add(name)
