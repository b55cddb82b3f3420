"""A run over a mixture in packed rows, for `test_mixed_run.py`: run by `python -m` in one process, answers as JSON."""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from phalanx.core.errors import PhalanxError
from phalanx.core.training_data import DataSource, MixtureSource, WeightChange
from phalanx.job.checkpoint import manifest
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.sources import open_sources
from phalanx.job.sdk import attach
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.finish import finish
from phalanx.job.train.loop import run
from phalanx.job.train.recipe import llama_recipe
from phalanx.job.train.resumed import CURSOR
from phalanx.job.train.saves import saving
from phalanx.job.train.setup import set_up

STEPS, EVERY, STOP, CHANGE, LATER = 12, 4, 7, 6, 9
MODEL: dict[str, Any] = {
    "dim": 16, "layers": 2, "heads": 2, "ffn_dim": 24, "sequence": 24, "batch_per_rank": 2, "accumulate": 2, "steps": STEPS,
    "warmup_steps": 2, "eval_batches": 2, "dtype": "fp32",
}  # fmt: skip


class Stopped(Exception):
    """As a rank that dies: nothing after it happens."""


def mixed(web: str, code: str, weight: float = 3) -> DataSource:
    sources = {"web": MixtureSource(path=web, weight=weight), "code": MixtureSource(path=code, weight=1)}
    return DataSource(sources=sources, changes=(WeightChange(from_step=CHANGE, weights={"code": 1.0}),), packing="best_fit")


def with_another(asked: DataSource) -> DataSource:
    """The mixture with a source that is read from step `LATER` on, and nobody had named before."""
    late = {"late": MixtureSource(path=asked.sources["code"].path, weight=0)}
    change = WeightChange(from_step=LATER, weights={"late": 1.0, "web": 1.0})
    return replace(asked, sources={**asked.sources, **late}, changes=(*asked.changes, change))


def leg(job: Path, asked: DataSource, rank: Rank, stop: int = 0, attempt: str = "") -> Mapping[str, Any]:
    """What was said of each step and of the model; `stop`: the step in which it ends, once its batch is there."""
    records = job / f"records-{time.monotonic_ns()}"
    env = {"PHALANX_JOB_DIR": str(job), "PHALANX_CHECKPOINT_EVERY": str(EVERY), "PHALANX_RECORDS": str(records)}
    env["PHALANX_ATTEMPT"] = attempt
    session = attach(env)
    data = open_sources(asked)
    training, start = set_up(session, llama_recipe(MODEL), data, rank, time.monotonic, lambda: time.time_ns() // 1_000_000)
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
    model = next((one for one in said if one["kind"] == "model"), None)
    losses = {one["step"]: one["loss_hex"] for one in said if one["kind"] == "step"}
    return {"losses": losses, "model": model, "damaged": [one for one in said if one["kind"] == "data"]}


def refused(job: Path, asked: DataSource, rank: Rank) -> str:
    try:
        leg(job, asked, rank)
    except PhalanxError as error:
        return error.sentence()
    return ""


def grown(out: Path, job: Path, asked: DataSource, rank: Rank) -> list[Mapping[str, Any] | str]:
    """On from what the job has saved, with another source, twice: the second leg goes on from what the first has saved."""
    shutil.copytree(job, out / "grown")
    try:
        return [leg(out / "grown", asked, rank, LATER + 2), leg(out / "grown", asked, rank)]
    except PhalanxError as error:
        return [error.sentence()]


def main(out: Path, web: str, code: str) -> None:
    asked = mixed(web, code)
    with gang() as rank:
        whole = leg(folder(out, "whole"), asked, rank)
        job = folder(out, "legs")
        legs = [leg(job, asked, rank, STOP)]
        places = dict(manifest.committed(job / "checkpoints"))
        cursor = Cursor.from_json(str(manifest.read(places[max(places)])[0].extra[CURSOR]))
        more = grown(out, job, with_another(asked), rank)
        answer = {
            "other": refused(job, mixed(web, code, weight=2), rank),
            "whole": whole, "legs": [*legs, leg(job, asked, rank)], "delivered": cursor.delivered, "saved": max(places),
            "grown": more,
        }  # fmt: skip
    (out / "answer.json").write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # as the trainer does


def folder(out: Path, name: str) -> Path:
    (out / name).mkdir()
    return out / name


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
