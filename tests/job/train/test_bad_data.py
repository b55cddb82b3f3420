"""Damaged blocks under the loaders: the run stops, or goes on without them on every rank, whoever met the damage."""

import json
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from phalanx.core.errors import DataError
from phalanx.core.training_data import DataSource, MixtureSource
from phalanx.job.data.audit_folder import audit_folder
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.block_sums import BLOCK_BYTES
from phalanx.job.data.deliveries import DeliveryLog, Head
from phalanx.job.data.draws import PlainOrder, positions
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.order_facts import facts_of
from phalanx.job.data.quarantine import SetAside, set_aside_of
from phalanx.job.data.sound import BadData
from phalanx.job.data.sources import open_sources
from phalanx.job.train.agree import on_bad_blocks
from phalanx.job.train.datasets import BatchDataset, StepLoader
from phalanx.job.train.device import Rank
from phalanx.job.train.feed import Feed
from tests.job.data.random_tokens import write_tokens

SEQUENCE, BATCH, STEPS = 500, 16, 20
BAD = 1
"""The damaged block of the data's four."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("bad") / "data"
    write_tokens(folder, [1_600_000])
    return open_data(folder)


@pytest.fixture
def folder(whole: TokenData, tmp_path: Path) -> Path:
    """A copy with a damaged block."""
    shutil.copytree(whole.folder, tmp_path / "data")
    with (tmp_path / "data" / "train-00000.bin").open("r+b") as file:
        file.seek(BAD * BLOCK_BYTES + 77)
        file.write(b"\xff\xfe\xff\xfe")
    return tmp_path / "data"


@pytest.fixture
def order(whole: TokenData) -> PlainOrder:
    return PlainOrder(num_samples=whole.num_samples("train", SEQUENCE), seed=1, global_batch=BATCH)


def first_bad(whole: TokenData, order: PlainOrder) -> tuple[int, tuple[int, int]]:
    """The step that meets the damage, and the samples that need the block."""
    block = Block(data=whole.manifest_hash, shard=whole.manifest.shards[0].bin_sha256, block=BAD)
    ((begin, end),) = whole.touching("train", block, SEQUENCE)
    drawn = order.draws(positions(order, 0, STEPS)).sample
    return int(np.flatnonzero((drawn >= begin) & (drawn < end))[0]) // BATCH, (begin, end)


QUARANTINE = BadData(policy="quarantine", share_max=0.5)


def test_by_default_a_damaged_block_ends_the_run_at_its_step(folder: Path, whole: TokenData, order: PlainOrder) -> None:
    dataset = BatchDataset(open_data(folder), "train", SEQUENCE, order, STEPS)
    seen: list[Any] = []
    with pytest.raises(BadBlock, match="are damaged"):
        seen.extend(DataLoader(dataset, batch_size=None))
    step, _ = first_bad(whole, order)
    assert len(seen) == step == dataset.state_dict()["delivered"] // BATCH


def test_a_run_goes_on_without_it_and_its_state_says_so(folder: Path, whole: TokenData, order: PlainOrder) -> None:
    data, (step, (begin, end)) = open_data(folder), first_bad(whole, order)
    dataset = BatchDataset(data, "train", SEQUENCE, order, STEPS, bad_data=QUARANTINE)
    batches = [batch.tolist() for batch in DataLoader(dataset, batch_size=None)]
    drawn = [order.draws(positions(order, one)).sample for one in range(STEPS)]
    for samples, batch in zip(drawn, batches, strict=True):
        right = whole.gather("train", samples, SEQUENCE).tolist()
        bad = (samples >= begin) & (samples < end)
        assert [got == was for got, was in zip(batch, right, strict=True)] == (~bad).tolist()
    state = json.loads(json.dumps(dataset.state_dict()))
    (aside,) = state["quarantine"]
    assert (state["format"], aside["since"], aside["block"], aside["samples"]) == (2, step * BATCH, BAD, [[begin, end]])

    resumed = StepLoader(data, "train", SEQUENCE, order, STEPS + 5, num_workers=0)  # which itself would stop
    resumed.load_state_dict(state)
    on = BatchDataset(data, "train", SEQUENCE, order, STEPS + 5, bad_data=QUARANTINE)
    on.load_state_dict(state)
    assert [torch.stack(list(batch)).tolist() for batch in resumed] == [batch.tolist() for batch in on]


class Meeting:
    """Ranks as threads that tell each other of bad blocks, as `on_bad_blocks` does between processes."""

    def __init__(self, world_size: int) -> None:
        self._told: list[Sequence[Block]] = [()] * world_size
        self._barrier = threading.Barrier(world_size)

    def of(self, rank: int) -> Any:
        def agree(mine: Sequence[Block]) -> Sequence[Block]:
            self._told[rank] = mine
            self._barrier.wait(timeout=120)
            everyone = [block for told in self._told for block in told]
            self._barrier.wait(timeout=120)
            return everyone

        return agree


def gang(
    folder: Path, job: Path, order: PlainOrder, attempt: int, size: int, stop: int, state: dict[str, Any] | None
) -> tuple[list[list[Any]], dict[str, Any]]:
    """Ranks with a copy each; that of the first alone is damaged, so that the others would never know."""
    meeting = Meeting(size)

    def rank_of(rank: int) -> tuple[list[Any], dict[str, Any]]:
        data = open_data(folder if rank == 0 else folder.with_name("whole"))
        start = state["delivered"] // BATCH if state else 0
        log = DeliveryLog(job / "deliveries", Head(
            attempt=attempt, generation=0, rank=rank, world_size=size, start=start, order=facts_of(order),
            data={"data": data.manifest_hash}, sequence=SEQUENCE, asked=DataSource(path=str(folder.with_name("whole"))),
        ))  # fmt: skip
        policy = BadData(policy="quarantine", share_max=0.5, agree=meeting.of(rank))
        dataset = BatchDataset(
            data, "train", SEQUENCE, order, stop, rank=rank, world_size=size, bad_data=policy, log=log, threads=1
        )
        dataset.load_state_dict(state or dataset.state_dict())
        batches = [batch.tolist() for batch in dataset]
        log.close()
        return batches, dataset.state_dict()

    with ThreadPoolExecutor(size) as pool:
        ranks = list(pool.map(rank_of, range(size)))
    assert all(found == ranks[0][1] for _, found in ranks)
    return [
        [row for batch in batches for row in batch] for batches in zip(*(ranks[at][0] for at in range(size)), strict=True)
    ], ranks[0][1]


def test_ranks_agree_when_one_of_them_meets_the_damage(folder: Path, whole: TokenData, order: PlainOrder, tmp_path: Path) -> None:
    """And a gang of another size goes on with the same samples; the audit of all of it is complete."""
    shutil.copytree(whole.folder, folder.with_name("whole"))
    alone = BatchDataset(open_data(folder), "train", SEQUENCE, order, STEPS, bad_data=QUARANTINE)
    right = [batch.tolist() for batch in alone]
    first, state = gang(folder, tmp_path, order, 1, 3, STEPS - 8, None)
    then, end = gang(folder, tmp_path, order, 2, 2, STEPS, state)
    met = state["quarantine"][0]["since"] // BATCH
    assert met >= first_bad(whole, order)[0], "when rank 0 first needs it, which others may have read before from a whole copy"
    bad = range(met, STEPS)
    assert [(first + then)[step] for step in bad] == [right[step] for step in bad] and end["quarantine"] == state["quarantine"]
    found = audit_folder(tmp_path)
    assert (found.complete, found.steps, found.set_aside, found.contents) == (True, STEPS, 1, "compared"), found.says
    assert found.sources[0].replaced > 0


def test_a_mixture_goes_on_without_a_block_of_one_source(folder: Path, whole: TokenData, tmp_path: Path) -> None:
    write_tokens(tmp_path / "sound", [300_000], seed=4)
    sources = {"bad": MixtureSource(path=str(folder), weight=3), "sound": MixtureSource(path=str(tmp_path / "sound"), weight=1)}
    mixed = open_sources(DataSource(sources=sources))
    order = mixed.order(SEQUENCE, seed=1, global_batch=BATCH)
    healed = DataSource(sources={**sources, "bad": MixtureSource(path=str(whole.folder), weight=3)})
    head = Head(
        attempt=1, generation=0, rank=0, world_size=1, start=0, order=facts_of(order), data=mixed.manifests, sequence=SEQUENCE,
        asked=healed,
    )  # fmt: skip
    with closing(DeliveryLog(tmp_path / "deliveries", head)) as log:
        dataset = BatchDataset(mixed, "train", SEQUENCE, order, STEPS, bad_data=QUARANTINE, log=log)
        assert len([batch.shape for batch in dataset]) == STEPS
    assert [(aside["source"], aside["block"]) for aside in dataset.state_dict()["quarantine"]] == [("bad", BAD)]
    found = audit_folder(tmp_path)
    assert (found.complete, found.contents) == (True, "compared"), found.says
    assert [source.replaced > 0 for source in found.sources] == [True, False]


def test_feeds_of_a_gang_read_on_together(folder: Path, whole: TokenData, order: PlainOrder) -> None:
    """Whoever of them meets the damage, in a batch of its own or in one that all ranks read."""

    def feed_of(at: Path, rank: int = 0, world_size: int = 1, agree: Any = None) -> Feed:
        data = open_sources(DataSource(path=str(at)))
        place = Rank(rank=rank, world_size=world_size, device=torch.device("cpu"), device_name="cpu")
        return Feed(data, order, SEQUENCE, place, BadData(policy="quarantine", share_max=0.5, agree=agree))

    shutil.copytree(whole.folder, folder.with_name("whole"))
    meeting, steps = Meeting(2), [1, 2, 2, 3, 4, 9, 10, 5]  # ranks go back and forth together

    def rank_of(rank: int) -> tuple[list[Any], tuple[SetAside, ...]]:
        with closing(feed_of(folder if rank == 1 else folder.with_name("whole"), rank, 2, meeting.of(rank))) as feed:
            shared = feed.shared(1, BATCH)
            return [shared.tolist(), *[feed(step).tolist() for step in steps]], set_aside_of(feed.order)

    with ThreadPoolExecutor(2) as pool:
        (first, aside), (second, too) = pool.map(rank_of, range(2))
    assert aside == too and [one.since for one in aside] == [0], "already in the batch that all read"
    with closing(feed_of(folder)) as feed:
        alone = [feed.shared(1, BATCH).tolist(), *[feed(step).tolist() for step in steps]]
        assert first[0] == second[0] == alone[0]
        assert [a + b for a, b in zip(first[1:], second[1:], strict=True)] == alone[1:]
        assert set_aside_of(feed.order) == aside


def test_ranks_that_cannot_agree_may_not_set_aside(whole: TokenData, order: PlainOrder) -> None:
    with pytest.raises(DataError, match="2 ranks must set the same blocks aside"):
        BatchDataset(whole, "train", SEQUENCE, order, rank=0, world_size=2, bad_data=QUARANTINE)


def test_too_much_damage_ends_the_run(folder: Path, order: PlainOrder) -> None:
    dataset = BatchDataset(open_data(folder), "train", SEQUENCE, order, STEPS, bad_data=BadData(policy="quarantine"))
    with pytest.raises(DataError, match=r"quarantine of data.*1 % may be replaced"):
        list(dataset)


def test_blocks_are_told_over_a_process_group(tmp_path: Path) -> None:
    block = Block(data="d", shard="s", block=3)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert on_bad_blocks([]) == []
        assert on_bad_blocks([block, block]) == [block]
    finally:
        dist.destroy_process_group()
