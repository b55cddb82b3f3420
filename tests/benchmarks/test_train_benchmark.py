"""The training benchmark plays its parts with a tiny model where there are no GPUs, by the same script to its last line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEEDS = {"long_64k": "cp 2", "moe_ep2": "experts in turn, ep 2", "tp2": "tp 2", "pp2": "32 microbatches, pp 2, schedule 1f1b"}
SLOTS = [*SPEEDS, "fp8_7b_loss bf16", "fp8_7b_loss fp8"]


def ran(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "train_gpu.py"), *words],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip


@pytest.mark.timeout(1_300)
def test_a_tiny_model_plays_every_layout_to_the_last_line_in_one_gang(tmp_path: Path) -> None:
    only = [word for name in (*SPEEDS, "fp8_7b_loss") for word in ("--only", name)]
    done = ran("--tiny", *only, "--folder", str(tmp_path), "--seconds", "1200")
    assert done.returncode == 0 and done.stdout, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["benchmark"] == "train_gpu" and last["conditions"]["tiny"] and last["claims"] == []
    *speeds, losses = last["played"]
    assert [one["id"] for one in speeds] == list(SPEEDS)
    for one in speeds:
        assert one["ours"] > 0 and SPEEDS[one["id"]] in one["ours_options"] and len(one["ours_all_s"]) == 2, one
    assert losses["id"] == "fp8_7b_loss" and losses["holds"], losses
    assert 0 < losses["off_percent"] < 1.0
    told = [json.loads(line) for line in (tmp_path / "train_gpu.jsonl").read_text().splitlines()]
    assert [(one["claim"], one["side"]) for one in told] == [(slot, "ours") for slot in SLOTS]
    assert all(one["tokens_per_s"] > 0 and one["took_s"] > 0 for one in told)
