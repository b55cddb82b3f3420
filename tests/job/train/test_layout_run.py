"""The trainer under a layout: two ranks share every matrix, are killed, and two ranks that share every sequence finish; and two
ranks share the layers, as the example of a pipeline does, of which others go on from their checkpoint bit for bit, with moments
where the example of `offload` has them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.core import wire
from phalanx.core.profile import FOLDER, SUMMARY, TRACE, RankTrace
from phalanx.core.spec import LayoutSpec
from phalanx.core.spec_layout import layout_variable
from phalanx.core.spec_parse import parse_spec
from phalanx.core.spec_profile import profile_variable
from phalanx.job.checkpoint import manifest
from phalanx.job.serve.sample import load_model
from tests.job.train.test_train_gang import HYPERPARAMETERS, VOCAB, Attempt, attempt
from tests.job.train.test_train_gang import data as data

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CHANGED: dict[str, Any] = {
    "accumulate": 2, "steps": 8, "recompute_every": 3, "dtype": "fp32",
    "tied": True, "experts": 4, "expert_ffn_dim": 16, "dense_layers": 1,
}  # fmt: skip
"""Of a model that has all that a layout may have to tell ranks of: a mixture after a dense layer, and an output that is the
embedding."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data: Path) -> list[Attempt]:
    """One process; and tensor parallel until after step 5, killed, then context parallel."""
    alone = attempt(tmp_path_factory.mktemp("alone"), data, 1, world_size=1, **CHANGED)
    job = tmp_path_factory.mktemp("laid")
    first = attempt(job, data, 1, "sigkill rank=1 step=5", saved=4, env=layout_variable(LayoutSpec(tp=2)), **CHANGED)
    return [alone, first, attempt(job, data, 2, env=layout_variable(LayoutSpec(cp=2)), **CHANGED)]


def test_the_samples_and_losses_are_those_of_one_process_in_both_layouts(runs: list[Attempt]) -> None:
    alone, first, second = runs
    assert alone.codes == [0] and second.codes == [0, 0], first.log() + second.log()
    assert (min(first.losses()), max(first.losses()), min(second.losses())) == (1, 5, 5)
    assert second.of_kind("resumed")[0]["step"] == 4
    expected = {record["step"]: record for record in alone.of_kind("step")}
    for leg in (first, second):
        assert leg.losses(0).items() <= leg.losses(1).items() or leg is first
        for record in leg.of_kind("step"):
            step = expected[record["step"]]
            assert record["tokens"] == step["tokens"] == 4 * 16
            assert record["loss"] == pytest.approx(step["loss"], rel=1e-5)
            assert record["grad_norm"] == pytest.approx(step["grad_norm"], rel=1e-4)
    one, other = alone.of_kind("model")[0]["metrics"], second.of_kind("model")[0]["metrics"]
    assert other["val_loss_first"] == pytest.approx(one["val_loss_first"], rel=1e-6)
    assert other["val_loss_final"] == pytest.approx(one["val_loss_final"], rel=1e-4)
    assert not [leg for leg in runs if leg.of_kind("corruption")], "parts of a matrix are no replicas of each other"


def test_ranks_that_share_matrices_or_rows_report_no_time_of_their_own(runs: list[Attempt]) -> None:
    """Inside a block they wait for each other: by such times a healthy node would be drained as a straggler's."""
    alone, *laid = ({record["local_us"] > 0 for record in leg.of_kind("step")} for leg in runs)
    assert alone == {True} and laid == [{False}, {False}]


def test_its_checkpoint_says_its_axes(runs: list[Attempt]) -> None:
    job = runs[1].folder.parent
    layouts = {step: manifest.read(folder)[0].origin.layout for step, folder in manifest.committed(job / "checkpoints")}
    assert layouts == {4: {"dp_shard": 1, "tp": 2}, 8: {"dp_shard": 1, "cp": 2}}


def test_a_tensor_parallel_gang_saves_the_model_that_one_process_would(tmp_path: Path, data: Path) -> None:
    """Whole matrices, in the order of rows that a model has which nobody cuts; one record of deliveries for both ranks."""
    laid = attempt(tmp_path, data, 1, env=layout_variable(LayoutSpec(tp=2)), **{**CHANGED, "steps": 2})
    assert laid.codes == [0, 0], laid.log()
    said = laid.of_kind("model")[0]
    model, _, _ = load_model(Path(said["path"]), said["weights_digest"])
    assert model.shape.vocab == VOCAB
    assert len(list((tmp_path / "deliveries").iterdir())) == 1
    refused = attempt(tmp_path, data, 2, env={"PHALANX_LAYOUT": json.dumps({"tp": 4})}, **CHANGED)
    assert refused.codes == [2, 2] and "layout.tp is 4: write one of 1, 2" in refused.log()


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory, data: Path) -> list[Attempt]:
    """The example of a pipeline with its trace, of a smaller model; and one that has the checkpoint that it left after step 4, with
    what the example of `offload` asks for."""
    job, other = tmp_path_factory.mktemp("piped"), tmp_path_factory.mktemp("again")
    example, offload = (parse_spec(yaml.safe_load((EXAMPLES / name / "job.yaml").read_text())) for name in ("pipeline", "offload"))
    assert example.profile is not None and example.layout == LayoutSpec(pp=2)
    traced = profile_variable(replace(example.profile, first=5)) | {"PHALANX_ARTIFACTS": str(job / "artifacts")}
    env, asked = layout_variable(example.layout), {**example.hyperparameters, **HYPERPARAMETERS, **CHANGED}
    whole = attempt(job, data, 1, env=env | traced, **asked)
    assert whole.codes == [0, 0], whole.log()
    fourth = next(Path(str(folder)) for step, folder in manifest.committed(job / "checkpoints") if step == 4)
    shutil.copytree(fourth, other / "checkpoints" / fourth.name)
    assert offload.hyperparameters["offload"] == "nvme"
    again = attempt(other, data, 2, env=env, **{**offload.hyperparameters, **asked, "offload_dir": str(other)})
    assert again.codes == [0, 0], again.log()
    return [whole, again]


def test_a_pipeline_trains_as_one_process_does(runs: list[Attempt], piped: list[Attempt]) -> None:
    alone, (whole, _) = runs[0], piped
    assert whole.losses(0) == whole.losses(1) and len(whole.losses()) == 8, "each rank knows the loss"
    for record, step in zip(whole.of_kind("step", 1), alone.of_kind("step"), strict=True):
        assert record["tokens"] == step["tokens"] == 4 * 16
        assert record["loss"] == pytest.approx(step["loss"], rel=1e-5)
        assert record["grad_norm"] == pytest.approx(step["grad_norm"], rel=1e-4)
        assert record["local_us"] == 0, "other layers take another time"
    one, other = alone.of_kind("model")[0]["metrics"], whole.of_kind("model")[0]["metrics"]
    assert other["val_loss_first"] == pytest.approx(one["val_loss_first"], rel=1e-6)
    assert other["val_loss_final"] == pytest.approx(one["val_loss_final"], rel=1e-4)
    assert not whole.of_kind("corruption") + whole.of_kind("corruption", 1)


def test_a_pipeline_tells_the_loads_of_the_experts_of_every_stage(runs: list[Attempt], piped: list[Attempt]) -> None:
    alone, whole = ([one for one in run.of_kind("metric") if "imbalance." in one["name"]] for run in (runs[0], piped[0]))
    assert {one["name"] for one in alone} == {"expert_imbalance.0"}, "of the last layer, which rank 0 of the pipeline has not"
    assert [(one["step"], one["name"]) for one in whole] == [(one["step"], one["name"]) for one in alone]
    assert [one["value"] for one in whole] == pytest.approx([one["value"] for one in alone], abs=0.1)


def test_a_pipeline_goes_on_from_its_checkpoint_bit_for_bit(piped: list[Attempt]) -> None:
    whole, again = piped
    assert again.of_kind("resumed")[0]["step"] == 4
    assert again.losses() == {step: loss for step, loss in whole.losses().items() if step > 4}
    digests = [one.of_kind("model")[0]["weights_digest"] for one in piped]
    assert digests[0] == digests[1]
    newest = dict(manifest.committed(again.folder.parent / "checkpoints"))[8]
    assert manifest.read(newest)[0].origin.layout == {"pp": 2, "dp_shard": 1}


def test_the_example_of_a_pipeline_leaves_its_trace_and_what_it_says(piped: list[Attempt]) -> None:
    folder = piped[0].folder.parent / "artifacts" / FOLDER
    for rank in (0, 1):
        assert (folder / f"rank-{rank}-steps-5-7{TRACE}").stat().st_size > 0
        said = wire.loads(RankTrace, (folder / f"rank-{rank}-steps-5-7{SUMMARY}").read_text())
        assert said.pipeline is not None and (said.pipeline.schedule, said.pipeline.num_ranks) == ("1f1b", 2)
        assert [step.step for step in said.steps] == [5, 6, 7] and said.passes.keys() == {"F", "B"}


def test_a_pipeline_saves_the_whole_model(runs: list[Attempt], piped: list[Attempt]) -> None:
    model, of_one = (load_model(*_model(run))[0] for run in (piped[0], runs[0]))
    found, wanted = dict(model.named_parameters()), dict(of_one.named_parameters())
    assert found.keys() == wanted.keys()
    assert all((found[name] - one).abs().max() < 1e-3 for name, one in wanted.items())
    assert len(list((piped[0].folder.parent / "deliveries").iterdir())) == 1, "one record for both ranks"


def _model(run: Attempt) -> tuple[Path, str]:
    said = run.of_kind("model")[0]
    return Path(said["path"]), said["weights_digest"]
