"""The examples of prepared data under other trainers, whole: Lightning's and Hugging Face's, broken off and gone on with; and what
their callbacks told."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job.data.random_tokens import write_tokens

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "trainers"
LOCAL = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


@pytest.mark.parametrize(("name", "batches"), [("data_lightning.py", 24), ("data_hf_trainer.py", 48)])
def test_every_batch_and_weight_is_as_undisturbed(tmp_path: Path, name: str, batches: int) -> None:
    write_tokens(tmp_path / "data", [20_000], vocab_size=500)
    command = [sys.executable, str(EXAMPLES / name), str(tmp_path / "data")]
    records = tmp_path / "rank-0.records"
    done = subprocess.run(
        command, env={**os.environ, **LOCAL, "PHALANX_RECORDS": str(records)}, cwd=tmp_path, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"gone on after 12: all {batches} batches and the weights are as undisturbed" in done.stdout
    written = [json.loads(line) for line in records.read_text().splitlines()]
    assert "logged.tokens" in {record["name"] for record in written if record["kind"] == "metric"}, "not the argument of `log`"
    said = [record for record in written if record["kind"] == "step"]
    steps = [record["step"] for record in said]
    assert steps == [*range(1, 25), *range(1, 14), *range(13, 25)], "whole, broken off after 13, gone on with after 12"
    assert all(0 < record["loss"] < 2 * math.log(500) and record["total_steps"] == 24 for record in said)
    assert {record["tokens"] for record in said} == {4 * 32 * batches // 24}
