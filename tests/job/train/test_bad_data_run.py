"""A recipe over damaged data: set aside at the step that meets it, carried by the checkpoints, and proven by the audit."""

import json
import os
import subprocess
import sys
from pathlib import Path

from phalanx.job.data.block_sums import BLOCK_BYTES
from phalanx.job.data.open import open_data
from tests.job.data.random_tokens import write_tokens
from tests.job.train.mixed_cases import EVERY, MODEL, STEPS

BATCH = MODEL["batch_per_rank"] * MODEL["accumulate"]
ROOT = Path(__file__).resolve().parents[3]


def test_a_run_goes_on_past_a_damaged_block_and_is_proven(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_tokens(data, [1_600_000], vocab_size=200, held_out=3_000)
    manifest_hash = open_data(data).manifest_hash
    with (data / "train-00000.bin").open("r+b") as file:
        file.seek(BLOCK_BYTES + 77)
        file.write(b"\xff\xff")
    words = [sys.executable, "-m", "tests.job.train.bad_data_cases", str(tmp_path), str(data)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answer = json.loads((tmp_path / "answer.json").read_text())

    whole, (first, then) = answer["whole"], answer["legs"]
    assert {**first["losses"], **then["losses"]} == whole["losses"] and len(whole["losses"]) == STEPS
    assert then["model"]["weights_digest"] == whole["model"]["weights_digest"]
    (aside,) = answer["saved"]["quarantine"]
    assert (aside["block"], answer["saved"]["data"]) == (1, {"data": manifest_hash}) and aside["since"] < EVERY * 4
    assert answer["last"]["quarantine"] == [aside], "found once"

    names = {leg["model"]["lineage"]["data_set_aside.data"] for leg in (whole, then)}
    samples = sum(end - begin for begin, end in aside["samples"])
    assert names == {f"shard {aside['shard'][:12]} block 1 from step {aside['since'] // BATCH + 1}"}, "also of one that resumed"
    assert then["model"]["lineage"]["data_set_aside"] == f"1 block, for {samples} samples of data"
    (damaged,) = whole["damaged"]
    named = {name: damaged[name] for name in ("rank", "step", "source", "shard", "blocks", "samples")}
    samples = sum(end - begin for begin, end in aside["samples"])
    step = aside["since"] // BATCH + 1
    assert named == {"rank": 0, "step": step, "source": "data", "shard": aside["shard"], "blocks": [1], "samples": samples}
    assert len(first["damaged"]) == 1 and then["damaged"] == [], "said once"

    audit = answer["audit"]
    assert (audit["complete"], audit["steps"], audit["set_aside"], audit["contents"]) == (True, STEPS, 1, "compared"), audit
    assert [(one["attempt"], one["first_step"], one["last_step"]) for one in audit["legs"]] == [
        (1, 1, EVERY),
        (2, EVERY + 1, STEPS),
    ]
    assert audit["sources"][0]["replaced"] > 0
    assert (audit["ended"], audit["end"]) == (True, f"the newest checkpoint is of step {STEPS}")
