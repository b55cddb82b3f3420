"""The test of a fabric by four gloo ranks that stand for two nodes, and what its ranks and its launcher refuse."""

import json
from pathlib import Path

import pytest

from phalanx.core import wire
from phalanx.core.errors import SetupError, SpecError
from phalanx.core.fabric_test import COLLECTIVES, REPORT, FabricAsked, read_progress, read_report
from phalanx.job.train.fabric_test import here
from phalanx.job.train.fabric_test.facts import nics_bytes_per_s
from tests.job.checkpoint.gang_launch import end_gang, logs, start_gang

ASKED = FabricAsked(sizes=(4096, 100_000), seconds=0.005, places=(("n*", {"block": "b"}), ("n1", {"block": "c"})))


def hyperparameters(asked: FabricAsked) -> dict[str, str]:
    return {"PHALANX_HYPERPARAMETERS": json.dumps({"asked": wire.dumps(FabricAsked, asked)})}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where four ranks have run: two on each of two nodes, which lie in two blocks."""
    folder = tmp_path_factory.mktemp("fabric")
    shared = hyperparameters(ASKED) | {"PHALANX_ARTIFACTS": str(folder), "PHALANX_JOB": "fabric-test-1", "LOCAL_WORLD_SIZE": "2"}
    own = {rank: {"LOCAL_RANK": str(rank % 2), "GROUP_RANK": str(rank // 2), "PHALANX_NODE": f"n{rank // 2}"} for rank in range(4)}
    codes = end_gang(start_gang(["-m", "phalanx.job.train.fabric_test"], folder, 4, shared, own))
    assert codes == [0, 0, 0, 0], logs(folder)
    return folder


def test_every_tier_collective_and_size_is_measured(folder: Path) -> None:
    report = read_report((folder / REPORT).read_bytes(), "report")
    assert (report.job, report.nodes, report.num_ranks, report.device) == ("fabric-test-1", ("n0", "n1"), 4, "cpu")
    assert [(tier.name, tier.num_groups, tier.num_ranks) for tier in report.tiers] == [
        ("node", 2, 2),
        ("block", 2, 2),
        ("all", 1, 4),
    ]
    measured = [(point.tier, point.collective, point.num_ranks, point.size_bytes) for point in report.points]
    sizes = {4: (4096, 100_000), 2: (4096, 100_000)}
    assert measured == [
        (tier.name, collective, tier.num_ranks, size)
        for tier in report.tiers for collective in COLLECTIVES for size in sizes[tier.num_ranks]
    ]  # fmt: skip
    for point in report.points:
        factor = {"all_reduce": 2.0}.get(point.collective, 1.0) * (point.num_ranks - 1) / point.num_ranks
        assert point.bus_bytes_per_s == pytest.approx(point.size_bytes / point.seconds * factor)
        assert (point.slowest != "") == (point.tier != "all") and point.part is None, "nobody knows what memory of a CPU carries"
    assert {(cost.tier, cost.collective) for cost in report.costs} == {
        (tier.name, one) for tier in report.tiers for one in COLLECTIVES
    }
    assert report.pairs == 4, "one inside each node, one of each number between them"
    assert any("all nodes are of one machine" in note for note in report.notes)


def test_rank_zero_says_how_far_it_is(folder: Path) -> None:
    lines = (folder / "rank-0.log").read_text().splitlines()
    said = [found for line in lines if (found := read_progress(line))]
    assert [done for _, done, _ in said] == list(range(len(said))) and said[-1][2] == len(said)
    assert said[0][0] == "each GPU alone" and said[-1][0] == "all_to_all of 100000 bytes, tier all"
    assert not (folder / "rank-1.log").read_text()


def test_here_needs_two_ranks_and_sizes_that_can_be(tmp_path: Path) -> None:
    for num_ranks in (1, 65):
        with pytest.raises(SpecError, match=r"^num_ranks: .*two ranks or more"):
            here.tested_here(FabricAsked(), num_ranks, tmp_path / "out.json", lambda *_: None)
    with pytest.raises(SpecError, match=r"^sizes: .*write sizes from 4 bytes to 8GiB"):
        here.tested_here(FabricAsked(sizes=(3,)), 2, tmp_path / "out.json", lambda *_: None)


UUIDS = tuple(f"GPU-{number}{number}" for number in range(8))


@pytest.mark.parametrize(
    ("chosen", "gpus"),
    [(None, 8), ("", 0), ("-1", 0), ("2", 1), ("0,3, 5", 3), ("0,9,1", 1), ("0,-1,1", 1), ("GPU-3,GPU-44", 2), ("GPU-", 0),
     ("MIG-a", 1), ("1,1", 0), ("NoDevFiles", 0)],
)  # fmt: skip
def test_gpus_that_cuda_shows(chosen: str | None, gpus: int) -> None:
    assert here.visible(chosen, UUIDS) == gpus


def test_here_takes_the_gpus_that_cuda_shows_else_a_few_processes() -> None:
    seen = {"CUDA_VISIBLE_DEVICES": "0,3"}
    assert (here.ranks_here(None, UUIDS, 99, {}), here.ranks_here(None, UUIDS, 99, seen), here.ranks_here(2, UUIDS, 99, {})) == (
        8,
        2,
        2,
    )
    assert [here.ranks_here(None, (), cpus, {}) for cpus in (1, 3, 99)] == [2, 3, 4] and here.ranks_here(9, (), 1, {}) == 9
    assert here.ranks_here(None, UUIDS, 3, {"CUDA_VISIBLE_DEVICES": ""}) == 3, "torch shows none, so these are processes"
    with pytest.raises(SpecError, match=r"^num_ranks: 3: there are 2 GPUs by CUDA_VISIBLE_DEVICES; write a number from 2 to 2"):
        here.ranks_here(3, UUIDS, 99, seen)
    with pytest.raises(SetupError, match=r"^this machine's number of GPUs: 1: a fabric is tested by two ranks"):
        here.ranks_here(None, UUIDS[:1], 99, {})
    with pytest.raises(SetupError, match=r"^CUDA_VISIBLE_DEVICES: '3': a fabric is tested by two ranks"):
        here.ranks_here(2, UUIDS, 99, {"CUDA_VISIBLE_DEVICES": "3"})


def test_a_rank_that_fails_ends_the_others_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(SetupError, match=r"rank [01]: 1: is what it ended with: it wrote nothing"):
        here.tested_here(FabricAsked(), 2, tmp_path / "out.json", lambda *_: None)
    assert not (tmp_path / "out.json").exists()


def test_ranks_here_have_torchruns_environment_and_none_of_a_platform(tmp_path: Path) -> None:
    outer = {"PHALANX_HOME": "/h", "PHALANX_NODE": "x", "TORCHELASTIC_RUN_ID": "1", "MINE": "1"}
    second = here.environments(ASKED, 2, tmp_path, 1234, outer)[1]
    assert {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1234", "MINE": "1"}.items() <= second.items()
    assert not {"PHALANX_HOME", "PHALANX_NODE", "TORCHELASTIC_RUN_ID"} & set(second)
    assert wire.loads(FabricAsked, json.loads(second["PHALANX_HYPERPARAMETERS"])["asked"]) == ASKED


def test_a_nodes_adapters_as_linux_shows_them(tmp_path: Path) -> None:
    assert nics_bytes_per_s(tmp_path) is None
    files = {"net/eth0/operstate": "up", "net/eth0/speed": "25000", "net/eth1/operstate": "down", "net/eth1/speed": "100000"}
    files |= {"net/eth0/device/x": "", "net/eth1/device/x": "", "net/virtual/operstate": "up", "net/virtual/speed": "400000"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert nics_bytes_per_s(tmp_path) == 25e9 / 8
    for number, state in enumerate(("4: ACTIVE", "4: ACTIVE", "1: DOWN")):
        port = tmp_path / f"infiniband/mlx5_{number}/ports/1"
        port.mkdir(parents=True)
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (port / "state").write_text(state + "\n")
    assert nics_bytes_per_s(tmp_path) == 100e9


def test_a_report_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is no result of `phalanx fabric test`"):
        read_report("{}", "x.json")
