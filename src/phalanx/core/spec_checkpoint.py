"""What a job's checkpoint policy may say."""

import re
from collections.abc import Iterable
from typing import Final

from phalanx.core.checkpoints import STORE_FORM, is_store
from phalanx.core.recipe import metrics_of
from phalanx.core.spec import JobSpec
from phalanx.core.spec_sharing import Check

_METRIC: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,127}")


def checkpoint_checks(spec: JobSpec) -> Iterable[Check]:
    """(field, value, good, what to change) for each rule."""
    keep = spec.checkpoint
    every = 0 if keep.every == "auto" else keep.every
    yield "checkpoint.every", keep.every, every >= 0, "write a number of steps, 0 or more, or auto"
    measured = keep.every != "auto" or bool(spec.recipe)
    yield "checkpoint.every", keep.every, measured, "only a recipe measures what its saves cost: write a number of steps"
    yield "checkpoint.keep_last", keep.keep_last, keep.keep_last >= 1, "write 1 or more"
    yield "checkpoint.keep_best", keep.keep_best, keep.keep_best >= 0, "write 0 or more"
    metric, named = keep.best_metric, _METRIC.fullmatch(keep.best_metric) is not None
    if keep.keep_best:
        yield "checkpoint.best_metric", metric, named, "keep_best goes by a metric: name one, such as val_loss"
    else:
        yield "checkpoint.best_metric", metric, not metric, "say with keep_best how many of the best are kept, or leave it out"
    measures = metrics_of(spec.recipe)
    known = not spec.recipe or not metric or metric in measures
    yield "checkpoint.best_metric", metric, known, f"a recipe measures {' and '.join(measures)}: name one of them"
    never = bool(spec.recipe) and metric in measures and metric != "loss" and spec.hyperparameters.get("eval_batches") == 0
    yield "checkpoint.best_metric", metric, not never, "is not measured with eval_batches: 0; name loss, or measure it"
    yield "checkpoint.store", keep.store, not keep.store or is_store(keep.store), STORE_FORM
    if keep.every == "auto":
        yield (
            "checkpoint.keep_every",
            keep.keep_every,
            keep.keep_every == 0,
            "with every: auto nobody knows the steps; leave it out",
        )
    multiple = keep.keep_every >= 0 and (every == 0 or keep.keep_every % every == 0)
    wanted = f"write a multiple of checkpoint.every ({every}), or 0" if every else "write a number of steps, 0 or more"
    yield "checkpoint.keep_every", keep.keep_every, multiple, wanted
