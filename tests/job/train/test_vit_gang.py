"""Two ranks train a vision transformer on packed images: every kind of data parallelism against one process, and a run that went on
from a checkpoint against one that nothing disturbed, bit by bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import shapes
import torch
from safetensors.torch import load_file

from phalanx.core import wire
from phalanx.core.errors import CheckpointError
from phalanx.core.vit_shape import VitShape
from phalanx.job.checkpoint import manifest
from phalanx.job.data.audit_folder import audit_folder
from phalanx.job.data.tars.pack import pack
from phalanx.job.models.model_config import read_shape
from phalanx.job.models.vit import Vit
from phalanx.job.serve.sample import load_model
from tests.job.checkpoint.gang_launch import end_gang, logs, start_gang
from tests.job.data.image_folders import CLASSES, write_images
from tests.job.train.vit_cases import HELD_OUT, LAYOUTS, RECIPE, STEPS, STOP

BATCH = 2 * RECIPE.batch_per_rank


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("vit")
    write_images(out / "images", each=24, side=12)
    pack(out / "images", out / "data")
    shapes.make(out / "shapes", each=40).rename(out / "example-data")
    codes = end_gang(start_gang(("-m", "tests.job.train.vit_cases", str(out)), out / "logs", 2, {}), limit_s=240)
    assert codes == [0, 0], logs(out / "logs")
    return out


@pytest.fixture(scope="module")
def answer(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "answer.json").read_text())
    return found


def numbers(losses: list[str]) -> list[float]:
    return [float.fromhex(loss) for loss in losses]


@pytest.mark.parametrize("name", [*LAYOUTS, "halves"])
def test_every_kind_of_data_parallelism_trains_as_one_process(answer: dict[str, Any], name: str) -> None:
    assert numbers(answer[name]) == pytest.approx(answer["plain"], rel=1e-5)
    assert len(answer["plain"]) == STEPS and answer["plain"][-1] < answer["plain"][0]


def test_what_is_computed_again_changes_no_bit_and_bf16_little(answer: dict[str, Any]) -> None:
    assert answer["again"] == answer["zero3"] == list(answer["whole"]["losses"].values())
    assert numbers(answer["bf16"]) == pytest.approx(answer["plain"], rel=0.05) and answer["bf16"] != answer["zero3"]


def test_a_run_that_went_on_is_the_run_that_nothing_disturbed(answer: dict[str, Any]) -> None:
    whole, (first, second) = answer["whole"], answer["legs"]
    assert [list(leg["losses"]) for leg in (first, second)] == [
        [str(step) for step in range(1, STOP)], [str(step) for step in range(4, STEPS + 1)],
    ]  # fmt: skip
    assert {**first["losses"], **second["losses"]} == whole["losses"]
    assert whole["model"]["weights_digest"] == second["model"]["weights_digest"]
    assert whole["model"]["metrics"] == second["model"]["metrics"]
    assert whole["corruption"] == second["corruption"] == []


def test_the_model_says_what_it_is_and_how_well_it_does(
    out: Path, answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    said = answer["whole"]["model"]
    assert said["lineage"]["recipe"] == "vit" and said["metrics"]["val_loss_final"] < said["metrics"]["val_loss_first"]
    assert 0 <= said["metrics"]["val_accuracy_final"] <= 1 and said["metrics"]["val_accuracy_final"] * HELD_OUT % 1 == 0
    assert answer["whole"]["images"] == [BATCH]
    assert answer["whole"]["tokens"] == [BATCH * 5], "four patches and the class's token of each image"
    folder = Path(said["path"])
    config = json.loads((folder / "config.json").read_text())
    assert config["recipe"] == "vit" and config["classes"] == list(CLASSES)
    model = Vit(wire.build(VitShape, config["shape"]))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    assert model(torch.zeros(1, 3, 8, 8)).shape == (1, len(CLASSES))
    for read in (load_model, read_shape):
        with pytest.raises(CheckpointError, match="is a model of images"):
            read(folder)
    assert not list(folder.glob("tokenizer*"))


def test_a_checkpoint_knows_how_accurate_it_is(out: Path) -> None:
    metrics = manifest.read(out / "whole/checkpoints" / manifest.folder_name(STEPS))[0].metrics
    assert metrics["val_accuracy"] * HELD_OUT % 1 == 0 and metrics["val_loss"] > 0, metrics


@pytest.mark.parametrize("name", ["whole", "legs"])
def test_each_image_was_read_exactly_once_an_epoch_and_held_out_ones_never(out: Path, name: str) -> None:
    found = audit_folder(out / name)
    trained = 3 * 24 - HELD_OUT
    assert found.complete and found.contents == "compared" and found.samples == STEPS * BATCH, found.says
    assert (found.sources[0].epochs, found.sources[0].rest) == divmod(STEPS * BATCH, trained)


def test_the_example_is_such_a_job(answer: dict[str, Any]) -> None:
    losses = numbers(answer["example"])
    assert len(losses) == 12 and losses[-1] < losses[0], losses


def test_what_cuts_a_model_is_refused(answer: dict[str, Any]) -> None:
    for axis in ("tp", "cp", "ep"):
        assert answer["refused"][axis].startswith(f"layout.{axis} is 2: write 1: a vision transformer is not cut")
