"""A script with the library on two ranks: killed, gone on with, told to leave and gone on with again, it is as undisturbed."""

import json
import select
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from phalanx.job.checkpoint import manifest
from phalanx.job.data.cursor import EXTRA
from tests.job.checkpoint.gang_launch import end_gang, logs, start_gang
from tests.job.data.random_tokens import write_tokens

KILL = "sigkill rank=1 step=7 attempt=1"


class Launches:
    """One job's folder, its agent's socket, and its attempts."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self._data = folder, data
        folder.mkdir()
        self.agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.agent.bind(str(folder / "s"))
        self.agent.listen(8)

    def attempt(self, number: int, **env: str) -> list[int]:
        """Exit codes in rank order."""
        told = {
            "PHALANX_JOB": "lib-1", "PHALANX_ATTEMPT": f"lib-1.{number}", "PHALANX_JOB_DIR": str(self.folder),
            "PHALANX_CHECKPOINT_EVERY": "3", "PHALANX_CHECKPOINT_KEEP_LAST": "9", "PHALANX_SOCKET": str(self.folder / "s"),
            "PHALANX_ARTIFACTS": str(self.folder / "artifacts"), **env,
        }  # fmt: skip
        where = self.folder / f"attempt-{number}"
        return end_gang(start_gang(["-m", "tests.job.train.library_cases", str(self._data), str(self.folder)], where, 2, told), 120)

    def losses(self, rank: int) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for line in (self.folder / f"rank-{rank}.losses").read_text().splitlines():
            step, _, loss = line.partition(" ")
            found.setdefault(int(step), set()).add(loss)
        return found

    def ended(self, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"rank-{rank}.json").read_text())
        return found

    def records(self, number: int, rank: int, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / f"attempt-{number}" / f"rank-{rank}.records").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def rings(self) -> set[int]:
        """Ranks that rang, in whatever attempt."""
        found = set()
        while select.select([self.agent], [], [], 0)[0]:
            with self.agent.accept()[0] as ringing:
                heard = b"".join(iter(lambda: ringing.recv(65536), b""))
                found |= {json.loads(line)["rank"] for line in heard.splitlines()}
        return found

    def log(self) -> str:
        return "\n".join(logs(path) for path in sorted(self.folder.glob("attempt-*")))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Launches]]:
    folder = tmp_path_factory.mktemp("library")
    write_tokens(folder / "data", [2000], vocab_size=40)
    whole, broken = Launches(folder / "whole", folder / "data"), Launches(folder / "broken", folder / "data")
    assert whole.attempt(1) == [0, 0], whole.log()
    killed = broken.attempt(1, PHALANX_FAULT=KILL)
    assert killed[1] == -9 and killed[0] > 0, broken.log()
    assert broken.attempt(2, LEAVE_AT="9") == [0, 0], broken.log()
    assert broken.attempt(3) == [0, 0], broken.log()
    yield {"whole": whole, "broken": broken}
    for job in (whole, broken):
        job.agent.close()


def test_killed_and_told_to_leave_it_gives_the_same_bits(jobs: Mapping[str, Launches]) -> None:
    for rank in (0, 1):
        undisturbed, losses = jobs["whole"].losses(rank), jobs["broken"].losses(rank)
        assert sorted(losses) == list(range(1, 13))
        assert losses == undisturbed, "steps that were made again are the same"
        assert jobs["broken"].ended(rank)["weights"] == jobs["whole"].ended(rank)["weights"]


def test_told_to_leave_both_ranks_end_at_one_step_and_it_is_saved(jobs: Mapping[str, Launches]) -> None:
    left = {rank: [record["step"] for record in jobs["broken"].records(2, rank, "step")][-1] for rank in (0, 1)}
    assert left[0] == left[1] and left[0] in (9, 10)
    assert jobs["broken"].ended(0)["begin"] == left[0]
    assert left[0] in [step for step, _ in manifest.committed(jobs["broken"].folder / "checkpoints")]


def test_the_platform_hears_of_steps_metrics_checkpoints_and_the_resume(jobs: Mapping[str, Launches]) -> None:
    whole, broken = jobs["whole"], jobs["broken"]
    steps = whole.records(1, 1, "step")
    assert [record["step"] for record in steps] == list(range(1, 13))
    assert all(record["tokens"] == 32 and record["total_steps"] == 12 and record["loss"] > 0 for record in steps)
    assert {record["name"] for record in whole.records(1, 0, "metric")} == {"noise"}
    assert whole.records(1, 1, "metric") == []
    assert {record["step"] for record in whole.records(1, 0, "checkpoint")} >= {9, 12}
    (resumed,) = broken.records(2, 0, "resumed")
    assert resumed["step"] in (3, 6)
    assert whole.rings() == broken.rings() == {0, 1}


def test_a_checkpoint_holds_the_cursor_that_audits_know(jobs: Mapping[str, Launches]) -> None:
    step, folder = manifest.committed(jobs["whole"].folder / "checkpoints")[0]
    cursor = json.loads(str(manifest.read(folder)[0].extra[EXTRA]))
    assert (step, cursor["delivered"]) == (12, 48)
    assert manifest.read(folder)[0].metrics["loss"] > 0


def test_chosen_steps_are_traced_with_a_summary(jobs: Mapping[str, Launches]) -> None:
    folder = jobs["whole"].folder / "artifacts" / "profile"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        f"rank-{rank}-steps-5-6.{kind}" for rank in (0, 1) for kind in ("trace.json.gz", "summary.json", "summary.txt")
    }
    summary = json.loads((folder / "rank-0-steps-5-6.summary.json").read_text())
    assert [one["step"] for one in summary["steps"]] == [5, 6]
    for one in summary["steps"]:
        assert 0 < one["data_wait_ms"] < one["wall_ms"]
        assert 0 <= one["exposed_communication_ms"] <= one["communication_ms"] < one["wall_ms"]
        assert one["communication_ms"] > 0
    assert summary["busiest"]
