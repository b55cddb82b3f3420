"""The recipe of a vision transformer: its sizes, what they cost, and what a job with it cannot say."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.core.errors import SpecError
from phalanx.core.recipe import config_text, written_out
from phalanx.core.spec import LayoutSpec
from phalanx.core.spec_parse import parse_spec, recipe_config
from phalanx.core.vit_recipe import VitRecipe
from phalanx.core.vit_shape import VitShape, flops_per_image, num_parameters
from phalanx.core.vit_sizes import SIZES
from phalanx.fabric.layouts import recipe_problems

ROOT = Path(__file__).parents[2]
JOB: dict[str, Any] = {"name": "images", "kind": "train", "recipe": "vit", "data": {"path": "data"}}


def job(data: dict[str, Any] | None = None, **hyperparameters: Any) -> dict[str, Any]:
    return {**JOB, "data": data or JOB["data"], "hyperparameters": {"held_out": 64, **hyperparameters}}


def changed(field: str, value: object) -> VitRecipe:
    return replace(VitRecipe(), **{field: value})  # type: ignore[arg-type]


def test_sizes_are_those_of_the_papers() -> None:
    millions = {name: round(num_parameters(size()) / 1e6, 1) for name, size in SIZES.items()}
    assert millions == {"vit-ti": 5.7, "vit-s": 22.1, "vit-b": 86.6, "vit-l": 304.3, "vit-h": 632.0}
    forward = {name: flops_per_image(size()) / 3 / 2 / 1e9 for name, size in SIZES.items()}  # multiply-adds
    assert forward["vit-s"] == pytest.approx(4.6, abs=0.05) and forward["vit-b"] == pytest.approx(17.6, abs=0.1)  # as DeiT has them


def test_operations_are_counted_as_they_are() -> None:
    shape = VitShape(image=8, patch=4, dim=6, layers=2, heads=2, ffn_dim=10, classes=3)
    tokens, block = 5, 2 * (6 * 18 + 6 * 6 + 6 * 10 + 10 * 6)
    attention = 2 * 2 * tokens * 6
    assert flops_per_image(shape) == 3 * (2 * tokens * (block + attention) + 4 * 2 * 48 * 6 + 2 * 6 * 3)


def test_a_named_size_gives_the_shape_and_what_is_said_goes_over_it() -> None:
    recipe = recipe_config(parse_spec(job(size="vit-s", patch=32)))
    assert isinstance(recipe, VitRecipe)
    assert recipe.shape(classes=7) == replace(SIZES["vit-s"](7), patch=32) and recipe.sequence == 50
    assert recipe.shape(classes=7).ffn_dim == 4 * 384
    assert written_out({"size": "vit-x"}, "vit") == {"size": "vit-x"}, "named where it is refused"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", "vit-x"), ("image", 30), ("patch", 0), ("heads", 3), ("classes", -1), ("label_smoothing", 1.0), ("crop_min", 0.0),
        ("flip", 1.5), ("held_out", 0), ("decode_threads", -1), ("lr", 0.0), ("activation_blocks", 2), ("dtype", "fp8"),
        ("normalise", "none"), ("lora_rank", 4), ("steps", 0), ("norm_epsilon", 0.0), ("image", 4_100), ("classes", 2**24 + 1),
    ],
)  # fmt: skip
def test_a_hyperparameter_that_cannot_work_is_refused_by_its_name(field: str, value: object) -> None:
    named = {"heads": "dim"}.get(field, field)
    with pytest.raises(SpecError) as told:
        parse_spec(job(None, **{field: value}))
    assert told.value.field == f"hyperparameters.{named}"


def test_the_largest_image_and_the_most_classes_are_let_pass() -> None:
    assert parse_spec(job(image=4_096, classes=2**24)).hyperparameters["image"] == 4_096


def test_data_of_tokens_is_not_for_images() -> None:
    for data, field in (
        ({"sources": {"a": {"path": "a"}}}, "data.sources"),
        ({"path": "a", "packing": "best_fit"}, "data.packing"),
        ({"path": "a", "attention": "document"}, "data.attention"),
    ):
        with pytest.raises(SpecError) as told:
            parse_spec(job(data))
        assert told.value.field == field
    with pytest.raises(SpecError, match="phalanx data pack"):
        parse_spec({name: value for name, value in JOB.items() if name != "data"})


def test_a_layout_that_cuts_the_model_is_refused_and_one_that_shares_it_is_not() -> None:
    for axis in ("pp", "cp", "tp", "ep"):
        (problem,) = recipe_problems(replace(LayoutSpec(), **{axis: 2}), VitRecipe())  # type: ignore[arg-type]
        assert problem[:2] == (axis, 2) and "zero and replicate" in problem[2]
    assert recipe_problems(LayoutSpec(zero=1, replicate=2), VitRecipe()) == []


def test_what_changes_no_loss_may_change_in_a_run_that_goes_on() -> None:
    usual = config_text(VitRecipe())
    free: tuple[tuple[str, object], ...] = (("decode_threads", 3), ("activation_checkpointing", "full"), ("prefetch_blocks", 1))
    for field, value in free:
        assert config_text(changed(field, value)) == usual
    others: tuple[tuple[str, object], ...] = (("flip", 0.0), ("held_out", 5), ("classes", 3), ("label_smoothing", 0.1))
    for field, value in others:
        assert config_text(changed(field, value)) != usual


def test_the_folder_of_init_says_the_shape_and_the_data_the_classes() -> None:
    given = parse_spec(job(init="models/a", classes=7, normalise="imagenet")).hyperparameters
    assert given["init"] == "models/a" and written_out(given, "vit") == given, "and no shape of a known size is below it"
    shape: dict[str, Any] = {
        "size": "vit-b",
        "image": 32,
        "patch": 4,
        "dim": 64,
        "layers": 3,
        "heads": 2,
        "ffn_dim": 64,
        "norm_epsilon": 1e-6,
    }
    for field, value in shape.items():
        with pytest.raises(SpecError, match="the folder of init says the model's shape") as told:
            parse_spec(job(init="models/a", **{field: value}))
        assert told.value.field == f"hyperparameters.{field}"


def test_a_checkpoint_from_before_init_is_gone_on_with() -> None:
    assert '"init":' not in config_text(VitRecipe()) and '"init":"a"' in config_text(VitRecipe(init="a"))


def test_the_best_checkpoint_may_be_the_most_accurate() -> None:
    best = {"keep_best": 1, "best_metric": "val_accuracy", "best_mode": "max"}
    assert parse_spec({**job(), "checkpoint": best}).checkpoint.best_metric == "val_accuracy"
    with pytest.raises(SpecError, match="is not measured with eval_batches: 0"):
        parse_spec({**job(None, eval_batches=0), "checkpoint": best})
    with pytest.raises(SpecError, match="a recipe measures val_loss and loss: name one"):
        parse_spec({**JOB, "recipe": "llama", "checkpoint": best})


def test_every_hyperparameter_is_documented_with_its_default() -> None:
    page = (ROOT / "docs/vit.md").read_text().splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in page if line.startswith("| `")]
    said = {row[0]: row[2] for row in rows if len(row) == 4}
    for one in fields(VitRecipe):
        default = str(one.default).lower() if isinstance(one.default, bool) else str(one.default)
        assert said[one.name] == (default or "none"), one.name


def test_the_examples_are_accepted() -> None:
    recipe = recipe_config(parse_spec(yaml.safe_load((ROOT / "examples/images/job.yaml").read_text())))
    assert recipe.shape(classes=3).tokens == 17
    recipe = recipe_config(parse_spec(yaml.safe_load((ROOT / "examples/images/fine-tune.yaml").read_text())))
    assert recipe.init == "made/model"
