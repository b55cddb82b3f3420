"""Vision transformers trained on packed images, for `test_vit_gang.py`: run by `python -m` on two ranks, which answer by
JSON of rank 0."""

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from phalanx.core.errors import SpecError
from phalanx.core.spec import LayoutSpec
from phalanx.core.spec_layout import layout_variable
from phalanx.core.training_data import DataSource
from phalanx.core.vit_recipe import VitRecipe
from phalanx.fabric.layouts import laid_out
from phalanx.job.data.images.open import ImageData
from phalanx.job.models.given import with_given
from phalanx.job.models.vit import Vit, initialise
from phalanx.job.models.vit_folder import VitFolder
from phalanx.job.sdk import attach
from phalanx.job.train.batches import first_batch, order_of_run, train_batches
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.feed import Feed
from phalanx.job.train.finish import finish
from phalanx.job.train.loop import run
from phalanx.job.train.opened import opened_images
from phalanx.job.train.optimizer import lr_at, make_adamw, set_lr
from phalanx.job.train.parallel import make_mesh, placed
from phalanx.job.train.parallel.build_vit import objective, sharded_vit
from phalanx.job.train.recipe import recipe_of
from phalanx.job.train.saves import saving
from phalanx.job.train.setup import set_up
from phalanx.job.train.step import train_step
from tests.job.checkpoint.gang_launch import ROOT

STEPS, EVERY, STOP, HELD_OUT = 9, 3, 5, 16
RECIPE = VitRecipe(
    image=8, patch=4, dim=16, layers=2, heads=2, batch_per_rank=4, steps=STEPS, warmup_steps=2, held_out=HELD_OUT, eval_batches=2,
    recompute_every=2, dtype="fp32", lr=0.01, label_smoothing=0.1, init_std=0.2,
)  # fmt: skip
LAYOUTS = {f"zero{zero}": LayoutSpec(zero=zero) for zero in (0, 1, 2, 3)} | {"replicate": LayoutSpec(replicate=2)}
OTHERS = {
    "halves": replace(RECIPE, batch_per_rank=2, accumulate=2),
    "again": replace(RECIPE, activation_checkpointing="full"),
    "bf16": replace(RECIPE, dtype="bf16"),
}


EXAMPLES = {file: yaml.safe_load((ROOT / f"examples/images/{file}.yaml").read_text()) for file in ("job", "fine-tune")}
EXAMPLE = recipe_of("vit", EXAMPLES["job"]["hyperparameters"])


class Stopped(Exception):
    """As a rank that dies: nothing after it happens."""


def leg(
    out: Path, name: str, attempt: int, data: ImageData, rank: Rank, stop: int = 0, recipe: VitRecipe = RECIPE
) -> dict[str, Any]:
    """A run through the trainer's own rooms. stop: the step in which it ends, once its batch is there."""
    job = out / name
    records = job / f"records-{rank.rank}-{attempt}"
    job.mkdir(exist_ok=True)
    given = {"PHALANX_JOB": name, "PHALANX_ATTEMPT": f"{name}-1.{attempt}", "PHALANX_JOB_DIR": str(job)}
    given |= {"PHALANX_CHECKPOINT_EVERY": str(EVERY), "PHALANX_RECORDS": str(records), "PHALANX_CHECKPOINT_KEEP_BEST": "1"}
    given |= {"PHALANX_CHECKPOINT_BEST_METRIC": "val_accuracy", "PHALANX_CHECKPOINT_BEST_MODE": "max"}
    session = attach({**os.environ, **given})
    training, start = set_up(session, recipe, data, rank, time.monotonic, lambda: time.time_ns() // 1_000_000)
    with suppress(Stopped), saving(training) as saves:

        def fetch_or_stop(step: int) -> Tensor:
            batch = training.train_batch(step)
            if step == stop:
                saves.settle()
                raise Stopped
            return batch

        ending = replace(training, train_batch=fetch_or_stop)
        finish(ending, run(ending, start, saves))
    said = [json.loads(line) for line in records.read_text().splitlines()]
    return {
        "losses": {one["step"]: one["loss_hex"] for one in said if one["kind"] == "step"},
        "tokens": sorted({one["tokens"] for one in said if one["kind"] == "step"}),
        "images": sorted({one["images"] for one in said if one["kind"] == "step"}),
        "model": next((one for one in said if one["kind"] == "model"), None),
        "corruption": [one for one in said if one["kind"] == "corruption"],
    }


def batches(data: ImageData, recipe: VitRecipe, rank: Rank) -> Any:
    batch = first_batch(recipe, rank.data_size)
    feed = Feed(data, order_of_run(data, recipe, batch), recipe.sequence, rank, steps=recipe.steps)
    return feed, train_batches(feed, recipe, batch)


def losses(data: ImageData, recipe: VitRecipe, rank: Rank, asked: LayoutSpec) -> list[str]:
    rank = replace(rank, layout=laid_out(asked, rank.world_size))
    assert recipe.dtype != "auto"
    model = sharded_vit(recipe.shape(data.classes), recipe, rank, make_mesh(rank), recipe.dtype)
    optimizer, (feed, fetch) = make_adamw(model, recipe), batches(data, recipe, rank)
    found = [train_step(model, optimizer, fetch, recipe, step, lambda: 0.0).loss.hex() for step in range(1, recipe.steps + 1)]
    feed.close()
    return found


def plain(data: ImageData, recipe: VitRecipe = RECIPE) -> list[float]:
    """One process, the whole batch, nothing sharded."""
    recipe = replace(recipe, batch_per_rank=2 * recipe.batch_per_rank)
    alone = Rank(rank=0, world_size=1, device=torch.device("cpu"), device_name="cpu")
    model, (feed, fetch) = Vit(recipe.shape(data.classes)), batches(data, recipe, alone)
    for name, part in model.named_children():
        if recipe.init and name != "head":
            VitFolder(Path(recipe.init)).fill(part, name)
        else:
            initialise(part, name, recipe.seed, recipe.init_std)
    optimizer, found = make_adamw(model, recipe), []
    for step in range(1, STEPS + 1):
        set_lr(optimizer, lr_at(step, recipe))
        loss = objective(model.shape, recipe).loss(model, fetch(step)[0])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.item()))
    feed.close()
    return found


def refused(rank: Rank) -> dict[str, str]:
    found = {}
    for axis, asked in {"tp": LayoutSpec(tp=2), "cp": LayoutSpec(cp=2), "ep": LayoutSpec(ep=2)}.items():
        session = attach({**os.environ, **layout_variable(asked)})
        try:
            placed(rank, session, RECIPE)
        except SpecError as error:
            found[axis] = error.sentence()
    return found


def example(out: Path, rank: Rank) -> list[str]:
    """The losses of the job of `examples/images`, of fewer steps and images."""
    assert isinstance(EXAMPLE, VitRecipe)
    recipe = replace(EXAMPLE, steps=12, warmup_steps=2, held_out=64, dtype="fp32")
    return losses(opened_images(DataSource(path=str(out / "example-data")), recipe, threads=2), recipe, rank, LayoutSpec())


def begun(out: Path, rank: Rank) -> dict[str, Any]:
    """A run that begins with the model in `out`/given, which is of other classes and another shape; once ended, and resumed."""
    recipe = with_given(replace(RECIPE, init=str(out / "given")))
    assert isinstance(recipe, VitRecipe)
    data = opened_images(DataSource(path=str(out / "data")), recipe, threads=2)
    legs = [leg(out, "begun", attempt, data, rank, stop, recipe) for attempt, stop in ((1, STOP), (2, 0))]
    return {"legs": legs, "plain": plain(data, recipe) if rank.rank == 0 else []}


def fine_tuned(out: Path, rank: Rank) -> list[str]:
    """The losses of the example that goes on from that one's model, of fewer images."""
    given = {**EXAMPLES["fine-tune"]["hyperparameters"], "init": str(out / "example-model")}
    recipe = recipe_of("vit", {**given, "steps": 12, "warmup_steps": 2, "dtype": "fp32"})
    assert isinstance(recipe, VitRecipe)
    return losses(opened_images(DataSource(path=str(out / "few/data")), recipe, threads=2), recipe, rank, LayoutSpec())


def main(out: Path) -> None:
    data = opened_images(DataSource(path=str(out / "data")), RECIPE, threads=2)
    with gang() as rank:
        answer: dict[str, Any] = {
            "whole": leg(out, "whole", 1, data, rank),
            "legs": [leg(out, "legs", 1, data, rank, STOP), leg(out, "legs", 2, data, rank)],
            **{name: losses(data, RECIPE, rank, layout) for name, layout in LAYOUTS.items()},
            **{name: losses(data, recipe, rank, LayoutSpec()) for name, recipe in OTHERS.items()},
            "refused": refused(rank),
            "example": example(out, rank),
            "fine_tuned": fine_tuned(out, rank),
            "begun": begun(out, rank),
        }
    if rank.rank == 0:
        (out / "answer.json").write_text(json.dumps({**answer, "plain": plain(data)}))
    os._exit(0)  # as the trainer does


if __name__ == "__main__":
    main(Path(sys.argv[1]))
