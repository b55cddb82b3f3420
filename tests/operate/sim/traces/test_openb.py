"""Alibaba's trace of shared GPUs: nodes and pods as they are, pods with GPUs as jobs, and every malformed row by its line."""

from pathlib import Path

import pytest

from phalanx.core.errors import NotFound
from phalanx.operate.sim.traces import openb
from phalanx.operate.sim.traces.errors import TraceError
from phalanx.operate.sim.traces.named import read_trace
from phalanx.operate.sim.traces.openb import OpenbNode, OpenbPod

NODES = "sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,64000,262144,2,P100\nopenb-node-0001,32000,262144,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "openb-pod-0001,6000,12288,1,460,V100M16|V100M32,LS,Running,427061,12902960,427061\n"
    "openb-pod-0000,88000,327680,8,1000,,LS,Running,427000,427010,0\n"
    "openb-pod-0002,8000,30517,0,0,,BE,Running,9565025,9586760,9565025\n"
)
"""Rows of openb (hkust-adsl/kubernetes-scheduler-simulator, Apache-2.0), with other times and models."""


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / "openb" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def test_nodes_and_pods_stay_as_they_are(tmp_path: Path) -> None:
    nodes = openb.read_nodes(written(tmp_path, "nodes_gpu.csv", NODES))
    assert nodes == (
        OpenbNode("openb-node-0000", 64_000, 262_144, 2, "P100"),
        OpenbNode("openb-node-0001", 32_000, 262_144, 0, ""),
    )
    first, second, third = openb.read_pods(written(tmp_path, "pods_default.csv", PODS))
    assert first == OpenbPod("openb-pod-0001", 6_000, 12_288, 1, 460, frozenset({"V100M16", "V100M32"}))
    assert (second.num_gpu, second.gpu_milli, second.models) == (8, 1_000, frozenset())
    assert (third.num_gpu, third.gpu_milli) == (0, 0)


def test_a_mix_without_times_or_models_has_pods_all_the_same(tmp_path: Path) -> None:
    file = written(tmp_path, "pods_multigpu20.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\npod-0,12000,16384,1,1000\n")
    assert openb.read_pods(file) == (OpenbPod("pod-0", 12_000, 16_384, 1, 1_000, frozenset()),)
    with pytest.raises(TraceError, match="the head lacks creation_time, deletion_time"):
        openb.read(file)


def test_by_name_it_is_a_trace_of_jobs_with_gpus(tmp_path: Path) -> None:
    written(tmp_path, "pods_default.csv", PODS)
    trace = read_trace("openb", tmp_path)
    assert (trace.name, trace.source, trace.skipped, trace.skipped_for) == ("openb/default", openb.SOURCE, 1, "no_gpu")
    gang, share = trace.jobs
    assert (gang.name, gang.submit_ms, gang.duration_ms, gang.devices, gang.milli) == ("openb-pod-0000", 0, 10_000, 8, 1000)
    assert (share.submit_ms, share.devices, share.milli, share.types) == (61_000, 1, 460, ("V100M16", "V100M32"))
    assert (share.cpus, share.memory_bytes) == (6.0, 12_288 * 2**20)


@pytest.mark.parametrize(
    ("old", "new", "line", "fix"),
    [
        ("1,460", "1,1460", 2, "gpu_milli: write 0 without a GPU, 1 to 1000 for one, 1000 for several"),
        ("1,460", "2,460", 2, "gpu_milli: write 0 without a GPU, 1 to 1000 for one, 1000 for several"),
        ("1,460", "0,460", 2, "gpu_milli: write 0 without a GPU, 1 to 1000 for one, 1000 for several"),
        ("1,460", "1,0", 2, "gpu_milli: write 0 without a GPU, 1 to 1000 for one, 1000 for several"),
        ("8,1000", "-8,1000", 3, "num_gpu: write 0 or more"),
        ("8,1000", "800,1000", 3, "num_gpu: write 64 or less"),
        ("88000", "lots", 3, "cpu_milli: write a number"),
        ("88000", "nan", 3, "cpu_milli: write a number"),
        ("30517", "3051700000000", 4, "memory_mib: is absurdly large; write 2147483647 or less"),
        ("openb-pod-0002", " ", 4, "name: write a name"),
        ("8000,30517,", "8000,", 4, "has 10 columns; the head has 11"),
    ],
)
def test_a_malformed_pod_is_named_by_its_line(tmp_path: Path, old: str, new: str, line: int, fix: str) -> None:
    assert old in PODS
    changed = "\n".join(row.replace(old, new) if number == line else row for number, row in enumerate(PODS.split("\n"), 1))
    with pytest.raises(TraceError) as told:
        openb.read_pods(written(tmp_path, "pods_default.csv", changed))
    assert (told.value.field, told.value.fix) == (f"pods_default.csv:{line}", fix)


@pytest.mark.parametrize(
    ("old", "new", "field", "fix"),
    [
        ("2,P100", "2,", "nodes_gpu.csv:2", "model: name the GPUs' model, and nothing for a node without GPUs"),
        ("0,\n", "0,P100\n", "nodes_gpu.csv:3", "model: name the GPUs' model, and nothing for a node without GPUs"),
        ("2,P100", "65,P100", "nodes_gpu.csv:2", "gpu: write 64 or less"),
        ("64000", "0", "nodes_gpu.csv:2", "cpu_milli: write 1 or more"),
        ("node-0001", "node-0000", "nodes_gpu.csv", "names two nodes so; give each a name of its own"),
        (
            "sn,",
            "name,",
            "nodes_gpu.csv:1",
            "the head lacks sn; the first line names the columns sn, cpu_milli, memory_mib, gpu, model",
        ),
    ],
)
def test_a_malformed_node_is_named_by_its_line(tmp_path: Path, old: str, new: str, field: str, fix: str) -> None:
    with pytest.raises(TraceError) as told:
        openb.read_nodes(written(tmp_path, "nodes_gpu.csv", NODES.replace(old, new, 1)))
    assert (told.value.field, told.value.fix) == (field, fix)


def test_an_end_before_its_creation_and_an_empty_or_missing_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"pods_default\.csv:2.*deletion_time: write 427061 or more"):
        openb.read(written(tmp_path, "pods_default.csv", PODS.replace("12902960", "427060")))
    with pytest.raises(TraceError, match="has no pod"):
        openb.read_pods(written(tmp_path, "pods_none.csv", PODS.split("\n")[0] + "\n"))
    with pytest.raises(NotFound):
        openb.read_nodes(tmp_path / "nowhere.csv")
