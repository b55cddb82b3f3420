"""The library's example under the real shim, in a gang that recovers inside: rank 0 is killed, all places get new processes, and
the attempt goes on from the last checkpoint."""

from pathlib import Path

from tests.job.checkpoint.gang_launch import ROOT
from tests.job.data.random_tokens import write_tokens
from tests.job.train.recovery_gang import start

SCRIPT = ROOT / "examples" / "library" / "train.py"


def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint_and_no_attempt(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [9000], vocab_size=60)
    env = {
        "PHALANX_JOB": "library-1", "PHALANX_ATTEMPT": "library-1.1", "PHALANX_JOB_DIR": str(tmp_path / "job"),
        "PHALANX_CHECKPOINT_EVERY": "50", "PHALANX_FAULT": "sigkill rank=0 step=130 attempt=1",
    }  # fmt: skip
    gang = start(tmp_path / "a", env, program=(str(SCRIPT), str(tmp_path / "data")), spares=0)
    assert gang.end(240) == [0, 0], gang.log()
    (recovered,) = gang.records(0, "recovered")
    (resumed,) = gang.records(0, "resumed")
    assert recovered["generation"] == 2 and "rank 0 was killed by SIGKILL" in recovered["why"]
    assert recovered["step"] == resumed["step"] and resumed["step"] in (50, 100)
    assert recovered["steps_lost"] == 130 - resumed["step"]
    for rank in (0, 1):
        losses = gang.losses(rank)
        assert sorted(losses) == list(range(1, 201))
        assert all(len(seen) == 1 for seen in losses.values()), "steps that were made again are the same"
        pids = {record["step"] for record in gang.records(rank, "step")}
        assert pids == set(range(1, 201))
    assert "generation 1 of the gang is over" in (gang.folder / "rank-1.log").read_text()
