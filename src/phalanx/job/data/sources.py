"""The prepared folders that a run reads, as one: samples are counted from the first source's to the last one's.

What is a sample, and where, is said by how rows are packed. Where documents are told apart a row comes with the number of each
token's document, so that attention, positions and the loss can be kept within it.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.core.training_data import ONE, Blocks, DataCache, DataSource, in_store
from phalanx.job.data.asked import check_asked, order_of
from phalanx.job.data.bad_block import Block
from phalanx.job.data.checked import check_within, numbers_of, split_of, whole
from phalanx.job.data.deliveries import content_of
from phalanx.job.data.documents import document_lengths
from phalanx.job.data.draws import DataOrder, Draws
from phalanx.job.data.enough import check_held_out, check_tokenizers, check_train, held_out_share, window_bytes
from phalanx.job.data.manifest import SPLITS, Split
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.order import Indices
from phalanx.job.data.packing import BestFit, Concatenate, Packing
from phalanx.job.data.quarantine import Touching
from phalanx.job.data.samples import Rows
from phalanx.job.data.shards import Watch

if TYPE_CHECKING:
    from phalanx.job.data.read_ahead import ReadAhead
    from phalanx.job.data.stored_shards import StoredSamples, StoredShards
    from phalanx.storage.cache.node_cache import NodeCache


class Sources:
    """From `open_sources`. Any thread may gather.

    by_document: rows come as [2, sequence + 1]: the tokens, and for each the number of its document's piece in the row, from 0, and
    -1 for padding, whose tokens are end marks. Else they are [sequence + 1].
    """

    def __init__(self, asked: DataSource, opened: Mapping[str, TokenData]) -> None:
        self.asked = asked
        self.opened = opened
        self.names = tuple(opened)
        self.by_document = asked.by_document
        self._packings: dict[tuple[str, Split, int], tuple[Packing, Indices]] = {}
        self._making = threading.Lock()

    def __reduce__(self) -> "tuple[type[Sources], tuple[DataSource, Mapping[str, TokenData]]]":
        """For a loader's processes: each opens the folders again."""
        return Sources, (self.asked, self.opened)

    @classmethod
    def of(cls, data: TokenData) -> "Sources":
        """One folder, as it is read where nothing else is asked for."""
        return cls(DataSource(path=str(data.folder)), {ONE: data})

    @property
    def first(self) -> TokenData:
        """The one whose tokenizer a model is saved with; they all have the same."""
        return next(iter(self.opened.values()))

    @property
    def vocab_size(self) -> int:
        return self.first.vocab_size

    @property
    def cache(self) -> "NodeCache | None":
        """That blocks of those in stores come through: one for all of them; None where all are folders."""
        return next((data.cache for data in self.opened.values() if data.cache is not None), None)

    @property
    def manifests(self) -> dict[str, str]:
        """Manifest hash of each."""
        return {name: data.manifest_hash for name, data in self.opened.items()}

    @property
    def manifest_hash(self) -> str:
        """Of the one, or a hash over those of all."""
        return self.first.manifest_hash if not self.asked.sources else _digest(self.manifests)

    @property
    def agreed(self) -> str:
        """What ranks have to have alike: the data, and how it is read."""
        said = wire.dumps(DataSource, self.asked)
        return self.manifest_hash if self.asked.is_plain else _digest({**self.manifests, "": said})

    def prepare(self, sequence: int) -> None:
        """Does now what rows of this length need once, since a spare takes its place in a hurry. Raises SetupError for a cache that
        cannot hold what is shuffled at once: all of it would be fetched again and again."""
        for split in SPLITS:
            self.sizes(split, sequence)
        self._check_cache(sequence)

    def sizes(self, split: Split, sequence: int) -> dict[str, int]:
        """Samples of each. Raises DataError for what is no split, and no length."""
        split, sequence = split_of(split), whole("sequence", sequence)
        return {name: self._size(name, split, sequence) for name in self.names}

    def num_tokens(self, split: Split) -> int:
        return sum(data.num_tokens(split) for data in self.opened.values())

    def num_samples(self, split: Split, sequence: int) -> int:
        return sum(self.sizes(split, sequence).values())

    def check_held_out(self, sequence: int, batch: int) -> None:
        """Raises DataError where there is not one held-out batch of `batch` samples."""
        tokens = {split: self.num_tokens(split) for split in SPLITS}
        share = held_out_share(one.manifest for one in self.opened.values())
        check_held_out(tokens, self.num_samples("held_out", sequence), sequence, batch, share)

    def contents(self, rows: Rows) -> NDArray[np.uint64]:
        """XXH3 of each row."""
        return content_of(rows)

    def order(self, sequence: int, *, seed: int, global_batch: int) -> DataOrder:
        """Of the run over the training split. Raises DataError for a source that has not one sample."""
        sizes = self.sizes("train", sequence)
        for name, size in sizes.items():
            check_train(name, size, sequence, self.asked.paths[name])
        cuts = {name: self._cut(name, "train", sequence) for name in self.names}
        return order_of(self.asked, sizes, cuts, seed=seed, global_batch=global_batch)

    def numbers(self, draws: Draws, split: Split, sequence: int) -> Indices:
        """Of these samples, counted over all sources."""
        first = np.cumsum([0, *self.sizes(split, sequence).values()])
        numbers: Indices = draws.sample + first[draws.source]
        return numbers

    def drawn(self, numbers: Indices, split: Split, sequence: int) -> tuple[Indices, Indices]:
        """The reverse of `numbers`: the source of each, and which of its samples it is."""
        ends = np.cumsum(list(self.sizes(split, sequence).values()))
        source = np.searchsorted(ends, numbers, side="right")
        return source, numbers - np.concatenate([[0], ends])[source]

    def packing(self, name: str, split: Split, sequence: int) -> tuple[Packing, Indices]:
        """What the rows of a source are made of, and where each of its documents begins. Made once: one of whole documents has to
        go over all of them to count its rows."""
        key = (name, split, sequence)
        with self._making:
            if key not in self._packings:
                lengths = document_lengths(self.opened[name], split)
                whole = self.asked.packing == "best_fit"
                packing = BestFit(lengths, sequence + 1) if whole else Concatenate(lengths, sequence)
                self._packings[key] = packing, np.cumsum(lengths, dtype=np.int64) - lengths
            return self._packings[key]

    def touching(self, block: Block, split: Split, sequence: int) -> Touching:
        """The stretches [first, stop) of samples that need a block, by source."""
        return {name: self._touching(name, block, split, sequence) for name in self.names}

    def row_shape(self, sequence: int) -> tuple[int, ...]:
        return (2, sequence + 1) if self.by_document else (sequence + 1,)

    def gather(self, split: Split, numbers: Indices, sequence: int, out: Rows | None = None, watch: Watch | None = None) -> Rows:
        """The samples of these numbers, in the order asked: int64 of shape [len(numbers), *row_shape(sequence)], in `out` where it
        is given. Raises IndexError for one outside, and what `TokenData.gather` does."""
        numbers = numbers_of("numbers", numbers)
        if len(self.names) == 1:
            return self._gather(self.names[0], split, numbers, sequence, out, watch)
        sizes = self.sizes(split, sequence)
        ends = np.cumsum(list(sizes.values()))
        check_within("sample", numbers, int(ends[-1]))
        rows = np.empty((len(numbers), *self.row_shape(sequence)), dtype=np.int64) if out is None else out
        source = np.searchsorted(ends, numbers, side="right")
        for each in np.unique(source).tolist():
            at = np.flatnonzero(source == each)
            name = self.names[each]
            rows[at] = self._gather(name, split, numbers[at] - (ends[each] - sizes[name]), sequence, None, watch)
        return rows

    def read_ahead(
        self, split: Split, sequence: int, order: Callable[[int], Indices], start: int, stop: int | None
    ) -> "ReadAhead | None":
        """What fetches the steps to come of those that lie in a store; None where none does. order: from a step to `numbers`."""
        far = {name: samples for name, data in self.opened.items() if (samples := data.far(split)) is not None}
        if not far:
            return None
        from phalanx.job.data.read_ahead import ReadAhead  # what data in folders does without

        cache = next(iter(far.values())).stored.source.cache  # of this node, for all of them
        return ReadAhead(cache, lambda step: self.needs(far, split, sequence, order(step)), start, stop)

    def needs(
        self, far: "Mapping[str, StoredSamples]", split: Split, sequence: int, numbers: Indices
    ) -> "Iterator[tuple[StoredShards, list[int]]]":
        """The units that these samples need of those that lie in a store, shard by shard."""
        source, sample = self.drawn(numbers, split, sequence)
        for each in np.unique(source).tolist():
            name, mine = self.names[each], sample[source == each]
            if (samples := far.get(name)) is None:
                continue
            if self.by_document:
                packing, document_begins = self.packing(name, split, sequence)
                yield samples.stored, samples.units_of(packing.pieces(mine), document_begins)
            else:
                yield samples.stored, samples.units(mine, sequence)

    def _gather(self, name: str, split: Split, samples: Indices, sequence: int, out: Rows | None, watch: Watch | None) -> Rows:
        data = self.opened[name]
        if not self.by_document:
            return data.gather(split, samples, sequence, out, watch)
        rows = np.empty((len(samples), 2, sequence + 1), dtype=np.int64) if out is None else out
        packing, document_begins = self.packing(name, split, sequence)
        pieces = packing.pieces(samples)
        rows[:, 1] = pieces.segments()
        data.gather_pieces(split, pieces, document_begins, rows[:, 0], watch)
        return rows

    def _touching(self, name: str, block: Block, split: Split, sequence: int) -> Sequence[tuple[int, int]]:
        data = self.opened[name]
        if block.data != data.manifest_hash:
            return ()
        if self.asked.packing == "concatenate":
            return data.touching(split, block, sequence)
        packing, document_begins = self.packing(name, split, sequence)
        assert isinstance(packing, BestFit)
        found = []
        for begin, end in data.tokens_of(split, block):  # whole runs, so that a cursor need not hold hundreds of stretches
            first = int(np.searchsorted(document_begins, begin, side="right")) - 1
            found.append(packing.run_rows(first, int(np.searchsorted(document_begins, end, side="left")) - 1))
        return found

    def _check_cache(self, sequence: int) -> None:
        shuffle = self.asked.shuffle
        if not isinstance(shuffle, Blocks):
            return
        far = {name: data for name, data in self.opened.items() if data.cache is not None}
        rows = {name: self._size(name, "train", sequence) for name in far}
        size = window_bytes(shuffle.window, rows, {name: data.manifest for name, data in far.items()}, sequence)
        for cache in {data.cache for data in far.values() if data.cache is not None}:
            cache.check_limit(size, f"a window of {shuffle.window} samples of each source (`data.shuffle`) has")

    def _size(self, name: str, split: Split, sequence: int) -> int:
        if self.asked.packing == "concatenate":
            return self.opened[name].num_samples(split, sequence)
        return self.packing(name, split, sequence)[0].num_samples

    def _cut(self, name: str, split: Split, sequence: int) -> str:
        if self.asked.packing == "concatenate":
            return Concatenate.named(sequence)
        return self.packing(name, split, sequence)[0].name


def open_sources(asked: DataSource) -> Sources:
    """Opens every folder, or place in a store. Raises DataError naming the first that cannot be read, or whose tokens are not those
    of the others."""
    check_asked(asked)
    cache = cache_of(asked)
    opened = {}
    for name, path in asked.paths.items():
        with named(asked, name):
            opened[name] = open_data(path, cache=cache)
    check_tokenizers({name: data.manifest for name, data in opened.items()})
    return Sources(asked, opened)


@contextmanager
def named(asked: DataSource, name: str) -> Iterator[None]:
    """What is wrong with the folder of a source as a whole is said of its field in the job spec."""
    try:
        yield
    except DataError as error:
        if error.field != "data":
            raise
        raise DataError(asked.field_of(name), asked.paths[name], error.fix) from error


def cache_of(asked: DataSource) -> "NodeCache | None":
    """That is said with the data, if any."""
    if asked.cache == DataCache() or not any(in_store(path) for path in asked.paths.values()):
        return None
    from phalanx.job.data.cache_place import node_cache  # what data in folders does without

    return node_cache(asked.cache.folder, asked.cache.limit)


def _digest(facts: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()
