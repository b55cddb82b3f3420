"""A rank that cannot record what it is given says so, and trains on."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from phalanx.core.recipe import LlamaRecipe
from phalanx.core.training_data import DataSource
from phalanx.fabric.layouts import Layout
from phalanx.job.data.deliveries import read_deliveries
from phalanx.job.data.sources import open_sources
from phalanx.job.sdk import attach
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import Feed
from phalanx.job.train.recorded import recording
from phalanx.job.train.setup import Start, Training
from tests.job.data.random_tokens import write_tokens


def test_of_ranks_that_share_a_sample_one_records_it(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [1000])
    data, layout = open_sources(DataSource(path=str(tmp_path / "data"))), Layout(dp_shard=2, tp=2)
    for at in range(4):
        rank = Rank(rank=at, world_size=4, device=torch.device("cpu"), device_name="cpu", layout=layout)
        feed = Feed(data, data.order(8, seed=1, global_batch=4), 8, rank)
        session = attach({"PHALANX_JOB_DIR": str(tmp_path), "PHALANX_ATTEMPT": "lm-1.1"})
        parts = {"session": session, "data": data, "feed": feed, "order": feed.order, "rank": rank}
        training = cast(Training, SimpleNamespace(**parts, recipe=LlamaRecipe(sequence=8)))
        with recording(training, Start(step=0, val_loss_first=None, checkpoint="")):
            feed(1)
        feed.close()
    recorded = read_deliveries(tmp_path / "deliveries")
    assert [(log.head.rank, log.head.world_size, list(log.batches)) for log in recorded] == [(0, 2, [0]), (1, 2, [0])]


@pytest.mark.parametrize("local_rank", [0, 1])
def test_the_first_rank_of_a_node_says_that_nothing_can_be_recorded(tmp_path: Path, local_rank: int) -> None:
    write_tokens(tmp_path / "data", [1000])
    (tmp_path / "deliveries").write_text("no folder")
    said = tmp_path / "said"
    env = {
        "PHALANX_JOB_DIR": str(tmp_path),
        "PHALANX_ATTEMPT": "lm-1.1",
        "PHALANX_RECORDS": str(said),
        "LOCAL_RANK": str(local_rank),
    }
    data, rank = (
        open_sources(DataSource(path=str(tmp_path / "data"))),
        Rank(rank=0, world_size=1, device=torch.device("cpu"), device_name="cpu"),
    )
    feed = Feed(data, data.order(8, seed=1, global_batch=2), 8, rank)
    parts = {"session": attach(env), "data": data, "feed": feed, "order": feed.order, "rank": rank}
    training = cast(Training, SimpleNamespace(**parts, recipe=LlamaRecipe(sequence=8)))
    with recording(training, Start(step=4, val_loss_first=None, checkpoint="")):
        assert feed(5).shape == (2, 9)
    feed.close()
    facts = [json.loads(line) for line in said.read_text().splitlines()] if said.exists() else []
    assert [(one["kind"], one["step"]) for one in facts] == ([("evidence", 5)] if local_rank == 0 else [])
