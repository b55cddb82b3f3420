"""Simulated clusters: from a line, from a file, sized to a trace; and what is wrong in them, named."""

from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.errors import NotFound, SpecError
from phalanx.core.policy import NodeRule, Policy
from phalanx.operate.sim.replay.cluster import cluster_of, describe, with_rules
from phalanx.operate.sim.replay.gangs import ESTIMATE_MIN, ESTIMATE_OF, Estimates, Gangs, Limits, parse_limits, split
from phalanx.operate.sim.traces.errors import TraceError
from phalanx.operate.sim.traces.named import read_file
from phalanx.operate.sim.traces.trace import Trace, TraceJob

TRACE = Trace.of("t", [TraceJob("a", 0, 100, 12), TraceJob("b", 50, 100, 8)])


def test_a_line_makes_groups_of_equal_nodes() -> None:
    nodes = cluster_of("H100:8x2, A100-80:4x1", TRACE)
    assert [node.node for node in nodes] == ["h100-00001", "h100-00002", "a100-80-00003"]
    assert describe(nodes) == "H100:8x2, A100-80:4x1"
    assert nodes[0].device_memory_bytes == 80 * 2**30
    assert nodes[2].price == 1.79


def test_nothing_said_is_a_cluster_that_the_trace_fills_at_its_peak() -> None:
    assert describe(cluster_of("", TRACE)) == "H100:8x3"
    assert describe(cluster_of("", Trace.of("t", TRACE.jobs, machine_devices=64))) == "H100:8x8"


def test_a_file_says_labels_tiers_prices_and_what_is_spot(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "nodes:\n"
        "- {count: 4, gpus: H100:8, tiers: {rack: 2}, labels: {zone: a}, cpus: 96, memory: 1TiB}\n"
        "- {count: 1, gpus: L4:2, spot: true, price: 0.3}\n"
    )
    nodes = cluster_of(str(file), TRACE)
    assert [node.labels.get("rack") for node in nodes[:4]] == ["rack-0-0", "rack-0-0", "rack-0-1", "rack-0-1"]
    assert (nodes[0].labels["zone"], nodes[0].cpus, nodes[0].memory_bytes) == ("a", 96, 2**40)
    assert (nodes[4].spot, nodes[4].price, nodes[4].device_memory_bytes) == (True, 0.3, 24 * 2**30)


def test_the_policys_rules_describe_the_nodes_too() -> None:
    policy = Policy(nodes=(NodeRule(match="h100-*", labels={"rack": "r1"}), NodeRule(match="*2", spot=True, price=1.0)))
    first, second = with_rules(cluster_of("H100:8x2", TRACE), policy)
    assert (first.labels["rack"], first.spot) == ("r1", False)
    assert (second.labels["rack"], second.spot, second.price) == ("r1", True, 1.0)


@pytest.mark.parametrize(
    ("content", "field", "fix"),
    [
        ("nodes: [{count: 1, gpus: 'H100:8', gpu: 8}]", "nodes.0.gpu", "is no key of a cluster; did you mean 'gpus'?"),
        ("nodes: [{count: 1, gpus: 'H100:8', zzz: 8}]", "nodes.0.zzz", "is no key of a cluster; there are count, gpus"),
        ("node: []", "node", "is no key of a cluster; did you mean 'nodes'?"),
        ("nodes: [{count: 0, gpus: 'H100:8'}]", "c.yaml: nodes.0.count", "write 1 or more"),
        ("nodes: [{count: many, gpus: 'H100:8'}]", "nodes.0.count", "write a whole number"),
        ("nodes: [{count: 1, gpus: 'H100:0.5'}]", "c.yaml: nodes.0.gpus", "write one type and 1 to 64 whole devices"),
        ("nodes: [{count: 1, gpus: 'H100:8', tiers: {row: 2}}]", "c.yaml: nodes.0.tiers", "is no tier; write domain, rack, block"),
        ("nodes: [{count: 1, gpus: 'H100:8', tiers: {rack: 0}}]", "c.yaml: nodes.0.tiers.rack", "write 1 or more nodes"),
        ("nodes: [{count: 1, gpus: 'H100:8', memory: lots}]", "c.yaml: nodes.0.memory", "write a size"),
        ("nodes: [{count: 1, gpus: 'H100:8', cpus: -1}]", "c.yaml: nodes.0.cpus", "write a number from 0"),
        ("nodes: [{count: 1, gpus: 'H100:8'}, {count: 1, gpus: 'h100:8'}]", "c.yaml: nodes.1.gpus", "write 'H100:8'"),
        ("nodes: [{count: 200001, gpus: 'H100:8'}]", "c.yaml: nodes", "are more than 200000 nodes"),
        ("nodes: []", "nodes", "name at least one group of nodes"),
        ("nodes: [", "--cluster", "is not valid YAML"),
        ("[]", "the file", ""),
    ],
)
def test_what_is_wrong_in_a_cluster_file_is_named(tmp_path: Path, content: str, field: str, fix: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    with pytest.raises(SpecError) as caught:
        cluster_of(str(file), TRACE)
    assert caught.value.field.endswith(field)
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("text", "value", "fix"),
    [
        ("H100", "H100", "write TYPE:COUNTxNODES"),
        ("H100:8", "H100:8", "write TYPE:COUNTxNODES"),
        ("H100:8x", "H100:8x", "write TYPE:COUNTxNODES"),
        ("8xH100", "8xH100", "write TYPE:COUNTxNODES"),
        ("8x4", "8x4", "write the devices' type too, such as 'H100:8x4'"),
        ("H100:0x4", "H100:0x4", "write 1 to 64 devices of a node"),
        ("H100:65x4", "H100:65x4", "write 1 to 64 devices of a node"),
        ("A100:8x1,H100:8x0", "H100:8x0", "write 1 to 200000 nodes"),
        ("H100:8x999999999", "H100:8x999999999", "write 1 to 200000 nodes"),
        ("H100:8x2,", "H100:8x2,", "has nothing between or after its commas"),
        ("h100:8x2", "h100:8x2", "write 'H100:8x2'"),
        ("H100:1x150000,L4:1x150000", 300000, "are more than 200000 nodes in all"),
    ],
)
def test_what_is_wrong_in_a_line_is_named(text: str, value: object, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        cluster_of(text, TRACE)
    assert (caught.value.field, caught.value.value) == ("--cluster", value)
    assert fix in caught.value.fix


def test_a_trace_that_no_cluster_is_made_to_fit_is_named_and_the_row_that_does_it(tmp_path: Path) -> None:
    file = tmp_path / "huge.csv"
    file.write_text("submit_s,duration_s,devices\n0,1,1\n0,1,100000000\n")
    with pytest.raises(TraceError, match="--cluster") as caught:
        cluster_of("", read_file(file))
    assert (caught.value.field, caught.value.value) == ("huge:3", 100_000_000)
    many = Trace.of("t", [TraceJob(str(number), 0, 100, 10**6) for number in range(9)])
    with pytest.raises(TraceError, match="are held at once at its peak") as caught:
        cluster_of("", many)
    assert (caught.value.field, caught.value.value) == ("t", 9 * 10**6)
    with pytest.raises(TraceError, match="of the whole machine"):
        cluster_of("", Trace.of("t", TRACE.jobs, machine_devices=10**9))


def test_an_absent_file_is_named() -> None:
    with pytest.raises(NotFound, match=r"absent\.yaml"):
        cluster_of("absent.yaml", TRACE)


@pytest.mark.parametrize(
    ("devices", "per_node", "num_nodes", "expected"),
    [
        (1, 8, 9, (1, 1)),
        (8, 8, 9, (1, 8)),
        (12, 8, 9, (2, 6)),
        (64, 8, 9, (8, 8)),
        (9, 8, 9, (3, 3)),
        (11, 8, 9, (2, 6)),
        (25, 8, 4, (4, 7)),
    ],
)
def test_gangs_lie_evenly_on_few_nodes(devices: int, per_node: int, num_nodes: int, expected: tuple[int, int]) -> None:
    """11 devices are prime: two nodes of six, one device more than asked for. 25 would lie evenly on five nodes; there are four."""
    assert split(devices, per_node, num_nodes) == expected


def test_equal_jobs_have_one_shape() -> None:
    gangs = Gangs(cluster_of("H100:8x2", TRACE))
    assert gangs.shape(TraceJob("a", 0, 1, 8)) is gangs.shape(TraceJob("b", 5, 9, 8))


@pytest.mark.parametrize("text", ["", "some", "factor", "factor:0.5", "factor:x", "factor:inf", "exactly"])
def test_limits_that_cannot_be_are_named(text: str) -> None:
    with pytest.raises(SpecError, match="--limits"):
        parse_limits(text)


def test_limits_that_can() -> None:
    assert parse_limits("factor:1.5") == Limits("factor", 1.5)
    assert parse_limits("estimate") == Limits("estimate")


def test_estimates_forget_all_but_the_newest() -> None:
    estimates = Estimates()
    jobs = [TraceJob(str(number), 0, 1000 + number, 8) for number in range(ESTIMATE_OF + 300)]
    for number, one in enumerate(jobs):
        assert (estimates.limit_ms(one) is None) == (number < ESTIMATE_MIN)
        estimates.learn(one)
    newest = sorted(one.duration_ms for one in jobs[-ESTIMATE_OF:])
    assert estimates.limit_ms(jobs[0]) == newest[int(0.9 * (ESTIMATE_OF - 1))]
    assert estimates.limit_ms(replace(jobs[0], tenant="other")) is None
