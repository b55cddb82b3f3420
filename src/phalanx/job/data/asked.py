"""From what a job spec says of its data to the order in which it is read. Pure."""

from collections.abc import Mapping
from typing import Any, Final, get_args

from phalanx.core.errors import DataError
from phalanx.core.training_data import ONE, Attention, Blocks, DataSource, OnBadData, Packing
from phalanx.job.data.blocks import FULL, BlockShuffle, InOrder, Shuffle
from phalanx.job.data.checked import shown, unknown
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


def check_asked(asked: Any) -> None:
    """Raises DataError for what is no `DataSource`, and for words in it that a job spec would not let pass: a wrong one would be
    read as another."""
    if not isinstance(asked, DataSource):
        raise DataError("data", shown(asked), "give a DataSource, such as DataSource(path='data'); open_data opens a folder alone")
    words: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("packing", get_args(Packing)), ("attention", (None, *get_args(Attention))), ("on_bad_data", get_args(OnBadData)),
    )  # fmt: skip
    for name, known in words:
        if (value := getattr(asked, name)) not in known:
            raise unknown(f"data.{name}", value, [word for word in known if word])
    if not isinstance(asked.shuffle, Blocks) and asked.shuffle not in ("full", "in_order"):
        raise unknown("data.shuffle", asked.shuffle, ("full", "in_order", "Blocks(...)"))
