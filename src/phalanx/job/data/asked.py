"""From what a job spec says of its data to the order in which it is read. Pure."""

from collections.abc import Mapping
from typing import Final

from phalanx.core.training_data import ONE, Blocks, DataSource
from phalanx.job.data.blocks import FULL, BlockShuffle, InOrder, Shuffle
from phalanx.job.data.draws import DataOrder, PlainOrder
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Change, Mixture, Source

_BY_DOCUMENT: Final = ", each document by itself"


def shuffle_of(asked: DataSource) -> Shuffle:
    """Of every source."""
    if isinstance(asked.shuffle, Blocks):
        return BlockShuffle(asked.shuffle.block_samples, asked.shuffle.window_blocks)
    return InOrder() if asked.shuffle == "in_order" else FULL


def mixture_of(asked: DataSource) -> Mixture:
    """Of data with `sources`."""
    shuffle = shuffle_of(asked)
    sources = [Source(name, weight=one.weight, epochs=one.epochs, shuffle=shuffle) for name, one in asked.sources.items()]
    changes = [Change(from_step=change.from_step, weights=change.weights) for change in asked.changes]
    return Mixture(sources, temperature=asked.temperature, changes=changes)


def order_of(asked: DataSource, sizes: Mapping[str, int], cuts: Mapping[str, str], *, seed: int, global_batch: int) -> DataOrder:
    """The order of a run. sizes, cuts: samples of each source, and how they are made of its documents.

    Raises DataError for a source without samples.
    """
    cuts = {name: f"{cut}{_BY_DOCUMENT}" if asked.by_document else cut for name, cut in cuts.items()}
    if asked.sources:
        return MixedOrder(mixture_of(asked), sizes, seed=seed, global_batch=global_batch, cuts=cuts)
    return PlainOrder(
        num_samples=sizes[ONE], seed=seed, global_batch=global_batch, shuffle=shuffle_of(asked), name=ONE, cut=cuts[ONE]
    )
