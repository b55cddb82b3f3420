"""One gang trains one thing: what each rank was given is compared before anything is built from it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
import torch.distributed as dist

from phalanx.core import wire
from phalanx.core.errors import DataError, SpecError
from phalanx.core.recipe import AnyRecipe
from phalanx.core.spec import LayoutSpec
from phalanx.core.spec_layout import LAYOUT_VARIABLE
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.data.bad_block import Block
from phalanx.job.sdk.session import Session

Given = Mapping[str, str | int | float]


def check_all_agree(session: Session, recipe: AnyRecipe, data: str) -> None:
    """A collective of all ranks. Raises, on every rank, DataError for other data and SpecError for another setting.

    Each names the first rank that was given something else than rank 0. data: the hash of what is read, and how.
    """
    given: Given = {
        "data": data,
        "PHALANX_JOB": session.job,
        "PHALANX_ATTEMPT": session.attempt,
        "PHALANX_JOB_DIR": session.job_dir,
        "PHALANX_CHECKPOINT_EVERY": session.checkpoint_every,
        "PHALANX_CHECKPOINT_MTBF_S": session.checkpoint_mtbf_s,
        "PHALANX_CHECKPOINT_KEEP_LAST": session.checkpoint_keep_last,
        "PHALANX_CHECKPOINT_KEEP_BEST": session.checkpoint_keep_best,
        "PHALANX_CHECKPOINT_BEST_METRIC": session.checkpoint_best_metric,
        "PHALANX_CHECKPOINT_BEST_MODE": session.checkpoint_best_mode,
        "PHALANX_CHECKPOINT_KEEP_EVERY": session.checkpoint_keep_every,
        LAYOUT_VARIABLE: wire.dumps(LayoutSpec, session.layout),
        **{f"hyperparameters.{name}": value for name, value in asdict(recipe).items()},
    }
    first, *others = told_by_all(given)
    for rank, other in enumerate(others, start=1):
        for field, value in other.items():
            if value != first[field]:
                error = DataError if field == "data" else SpecError
                raise error(f"{field} of rank {rank}", value, f"rank 0 has {first[field]!r}; give every rank of the gang the same")


def on_bad_blocks(mine: Sequence[Block]) -> list[Block]:
    """The damaged blocks that any rank has met, on every rank. A collective of all ranks, of one number where there is none; over
    gloo. See `job.data.sound`."""
    met = torch.tensor(len(mine), dtype=torch.int32)
    dist.all_reduce(met, dist.ReduceOp.MAX)
    return sorted({block for blocks in told_by_all(list(mine)) for block in blocks}) if met.item() else []
