"""Runs that begin with given weights, for `test_init_gang.py`: run by `python -m` on two ranks, answers as JSON from rank 0."""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from phalanx.core.errors import PhalanxError
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import LayoutSpec, Zero
from phalanx.core.spec_layout import layout_variable
from phalanx.core.training_data import DataSource
from phalanx.job.data.sources import Sources, open_sources
from phalanx.job.models.llama import Llama
from phalanx.job.models.lora import adapt, initialise_adapters, is_of_adapter
from phalanx.job.models.model_folder import ModelFolder
from phalanx.job.sdk import attach
from phalanx.job.train.batches import first_batch, order_of_run, train_batches
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.feed import Feed
from phalanx.job.train.finish import finish
from phalanx.job.train.initial import agreed_digest, check_init
from phalanx.job.train.loop import run
from phalanx.job.train.loss import token_loss
from phalanx.job.train.optimizer import lr_at, make_adamw, set_lr
from phalanx.job.train.recipe import llama_recipe
from phalanx.job.train.saves import saving
from phalanx.job.train.setup import set_up
from tests.job.checkpoint.gang_launch import ROOT

STEPS, EVERY, STOP = 6, 3, 5
GIVEN: dict[str, Any] = {
    "sequence": 16, "batch_per_rank": 2, "steps": STEPS, "warmup_steps": 2, "eval_batches": 1, "dtype": "fp32", "lr": 0.01,
    "recompute_every": 2,
}  # fmt: skip
EXAMPLE: dict[str, Any] = yaml.safe_load((ROOT / "examples/fine-tune/job.yaml").read_text())
LORA: dict[str, Any] = {name: value for name, value in EXAMPLE["hyperparameters"].items() if name.startswith("lora_")}


class Stopped(Exception):
    """As a rank that dies: nothing after it happens."""


def leg(out: Path, name: str, data: Sources, given: Mapping[str, Any], rank: Rank, stop: int = 0, zero: Zero = 3) -> dict[str, Any]:
    """A run through the trainer's own rooms. stop: the step in which it ends, once its batch is there. `changed`: which weights are
    not what they were."""
    job = out / name
    records = job / f"records-{rank.rank}-{time.monotonic_ns()}"
    records.parent.mkdir(exist_ok=True)
    given_env = {"PHALANX_JOB_DIR": str(job), "PHALANX_CHECKPOINT_EVERY": str(EVERY), "PHALANX_RECORDS": str(records)}
    given_env |= layout_variable(LayoutSpec(zero=zero))
    recipe = llama_recipe(given)
    check_init(recipe, data)
    training, start = set_up(
        attach({**os.environ, **given_env}), recipe, data, rank, time.monotonic, lambda: time.time_ns() // 1_000_000
    )
    before = {} if start.step else whole(cast(Llama, training.model))
    with suppress(Stopped), saving(training) as saves:

        def fetch_or_stop(step: int) -> Tensor:
            batch = training.train_batch(step)
            if step == stop:
                saves.settle()
                raise Stopped
            return batch

        ending = replace(training, train_batch=fetch_or_stop)
        finish(ending, run(ending, start, saves))
    after = whole(cast(Llama, training.model))
    said = [json.loads(line) for line in records.read_text().splitlines()]
    return {
        "losses": {one["step"]: one["loss_hex"] for one in said if one["kind"] == "step"},
        "model": next((one for one in said if one["kind"] == "model"), None),
        "corruption": [one for one in said if one["kind"] == "corruption"],
        "changed": sorted(name for name, weight in before.items() if not torch.equal(weight, after[name])),
        "began": before,
    }


def whole(model: nn.Module) -> dict[str, Tensor]:
    """All weights, on rank 0. A collective of all ranks."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {name: weight.clone() for name, weight in cast(dict[str, Tensor], get_model_state_dict(model, options=options)).items()}


def given_weights(folder: Path, recipe: LlamaRecipe) -> Llama:
    """Without mesh or gang."""
    opened = ModelFolder(folder)
    model = Llama(opened.shape)
    if recipe.lora is not None:
        adapt(model, recipe.lora)
    for name, part in model.named_children():
        opened.fill(part, name)
        initialise_adapters(part, name, recipe.seed)
    return model


def plain(data: Sources, given: Mapping[str, Any]) -> list[float]:
    """The losses of one process with the whole batch."""
    recipe = replace(llama_recipe(given), batch_per_rank=2 * GIVEN["batch_per_rank"])
    alone = Rank(rank=0, world_size=1, device=torch.device("cpu"), device_name="cpu")
    batch = first_batch(recipe, 1)
    fetch = train_batches(Feed(data, order_of_run(data, recipe, batch), recipe.sequence, alone), recipe, batch)
    model = given_weights(Path(recipe.init), recipe)
    optimizer, losses = make_adamw(model, recipe), []
    for step in range(1, STEPS + 1):
        set_lr(optimizer, lr_at(step, recipe))
        loss = token_loss(model, fetch(step)[0])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.item()))
    return losses


def on_other_weights(out: Path, data: Sources, given: Mapping[str, Any], base: Path, rank: Rank) -> str:
    """On from the same checkpoint, with other weights in the folder."""
    if rank.rank == 0:
        shutil.copytree(out / "legs", out / "elsewhere")
        weights = base / "model.safetensors"
        data_bytes = bytearray(weights.read_bytes())
        data_bytes[-1] ^= 0x80  # the sign of the last number
        weights.write_bytes(data_bytes)
    torch.distributed.barrier()
    try:
        leg(out, "elsewhere", data, given, rank)
    except PhalanxError as error:
        return error.sentence()
    return ""


def told_of_nodes(recipe: LlamaRecipe, other: Path, rank: Rank, node: str) -> str:
    """Under what is one path to each, rank 1 has the weights of `other`."""
    mine = replace(recipe, init=str(other)) if rank.rank else recipe
    try:
        agreed_digest(mine, attach({"PHALANX_NODE": node}).node)
    except PhalanxError as error:
        return error.sentence()
    return ""


def main(out: Path, folder: Path, base: Path) -> None:
    data = open_sources(DataSource(path=str(folder)))
    full, lora = {**GIVEN, "init": str(base)}, {**GIVEN, **LORA, "init": str(base)}
    with gang() as rank:
        answer: dict[str, Any] = {
            "full": leg(out, "full", data, full, rank),
            "whole": leg(out, "whole", data, lora, rank),
            "zero": leg(out, "zero", data, lora, rank, zero=1)["losses"],
            "legs": [leg(out, "legs", data, lora, rank, stop) for stop in (STOP, 0)],
        }
        if rank.rank == 0:
            given = dict(given_weights(base, llama_recipe(full)).named_parameters())
            for kind in ("full", "whole"):
                began = answer[kind].pop("began")
                answer[kind]["given"] = [name for name, weight in given.items() if not torch.equal(began[name], weight)]
                answer[kind]["adapters"] = sum(is_of_adapter(name) for name in began)
            answer["plain"] = {"full": plain(data, full), "whole": plain(data, lora)}
        torch.distributed.barrier()
        answer["other"] = on_other_weights(out, data, lora, base, rank)
        recipe = llama_recipe(full)
        answer["nodes"] = [told_of_nodes(recipe, out / "kept", rank, node) for node in (f"n{rank.rank}", "n0")]
    if rank.rank == 0:
        for one in answer["legs"]:
            del one["began"]
        (out / "answer.json").write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # as the trainer does


if __name__ == "__main__":
    main(*(Path(one) for one in sys.argv[1:]))
