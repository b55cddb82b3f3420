"""A run over a mixture in packed rows, ended in the middle of a step and resumed, is the run that nothing disturbed."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from phalanx.job.data.prepare import prepare
from tests.job.checkpoint.gang_launch import ROOT
from tests.job.data.prepare_cases import write_texts
from tests.job.train.mixed_cases import CHANGE, EVERY, LATER, MODEL, STEPS, STOP


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    base = tmp_path_factory.mktemp("mixed")
    web, code = (write_texts(base / name, files=12, lines=lines) for name, lines in (("web", 30), ("code", 12)))
    prepare([web], base / "w", vocab_size=300, held_out=0.2)
    prepare([code], base / "c", tokenizer=base / "w" / "tokenizer.json", held_out=0.2)
    command = [sys.executable, "-W", "error", "-m", "tests.job.train.mixed_cases", str(base), str(base / "w"), str(base / "c")]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((base / "answer.json").read_text())
    return found


def test_what_is_resumed_has_the_losses_and_the_weights_of_the_undisturbed_run_bit_by_bit(answer: dict[str, Any]) -> None:
    whole, (first, second) = answer["whole"], answer["legs"]
    assert list(whole["losses"]) == [str(step) for step in range(1, STEPS + 1)]
    assert list(first["losses"]) == [str(step) for step in range(1, STOP)]
    assert list(second["losses"]) == [str(step) for step in range(EVERY + 1, STEPS + 1)]
    for leg in (first, second):
        assert leg["losses"] == {step: whole["losses"][step] for step in leg["losses"]}
    assert whole["model"]["weights_digest"] == second["model"]["weights_digest"]
    assert whole["model"]["metrics"]["val_loss_final"] < whole["model"]["metrics"]["val_loss_first"]


def test_T12_the_cursor_of_a_checkpoint_is_that_of_its_step(answer: dict[str, Any]) -> None:
    assert answer["saved"] == EVERY
    assert answer["delivered"] == EVERY * MODEL["batch_per_rank"] * MODEL["accumulate"]


def test_another_past_of_the_mixture_is_refused(answer: dict[str, Any]) -> None:
    assert CHANGE > EVERY
    assert "is not the order in which this run has read" in answer["other"]


def test_a_run_goes_on_with_a_source_that_is_added_for_a_later_step(answer: dict[str, Any]) -> None:
    """The data cursor knows the past, in which it has no share; a hash over all sources does not."""
    first, second = answer["grown"]
    whole = answer["whole"]["losses"]
    assert list(first["losses"]) == [str(step) for step in range(EVERY + 1, LATER + 2)]
    assert list(second["losses"]) == [str(step) for step in range(2 * EVERY + 1, STEPS + 1)]
    assert {step: one for step, one in first["losses"].items() if int(step) <= LATER} == {
        step: whole[step] for step in map(str, range(EVERY + 1, LATER + 1))
    }
    assert first["losses"][str(LATER + 1)] == second["losses"][str(LATER + 1)] != whole[str(LATER + 1)]
    assert second["model"]["lineage"]["data_manifest.late"] == answer["whole"]["model"]["lineage"]["data_manifest.code"]


def test_the_model_knows_the_manifests_of_its_sources(answer: dict[str, Any]) -> None:
    lineage = answer["whole"]["model"]["lineage"]
    named = {name for name in lineage if name.startswith("data_manifest")}
    assert named == {"data_manifest", "data_manifest.web", "data_manifest.code"}
    assert len({lineage[name] for name in named}) == 3
