"""Samples of any kind, such as images, under PyTorch's own `DataLoader`, and under what is built on it.

What the bytes mean is the user's to say: `decode` takes a `Sample`, `transform` what that gives and a random generator of the
sample and the epoch, so that augmentation is the same after a resume. `FieldDataset` with `StepDraws` as its `batch_sampler` works
with any number of loader processes; the step is counted by who trains. `FieldBatches` makes batches ahead by threads of this
process, which suits decoders that let other threads run, as Pillow's do, and counts for itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data.checked import callable_of, integer, order_of, rank_of, shown, steps_of, unknown, whole
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.draws import DataOrder
from phalanx.job.data.stream import DEPTH, THREADS
from phalanx.job.data.tars.open import SampleData
from phalanx.job.data.tars.stream import Decode, Making, Transform, draws_of_rank, sample_stream, sources_of
from phalanx.job.data.waits import Cause


def _check_making(
    sources: Mapping[str, SampleData], decode: object, transform: object, fields: Sequence[str] | None, seed: object
) -> None:
    """Raises DataError for what would fail at the first sample."""
    callable_of("decode", decode, "from a Sample to what it holds")
    if transform is not None:
        callable_of("transform", transform, "from that and a generator to an item")
    integer("seed", seed)
    if isinstance(fields, str):
        raise DataError("fields", fields, f"give a list of names, such as [{fields!r}]")
    for data in sources.values():
        if not isinstance(data, SampleData):
            raise DataError("data", shown(data), "give what `open_samples` opened")
        for name in fields or ():
            if name not in data.fields:
                raise unknown("fields", name, data.fields)


class FieldDataset(Dataset[Any]):
    """Map-style: item i is made of sample i. A pair (epoch, i), as `StepDraws` gives, says for which epoch; else it is epoch 0."""

    def __init__(
        self,
        data: SampleData,
        decode: Decode,
        transform: Transform | None = None,
        *,
        fields: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        """fields: to be read, None for all that a sample has. seed: of the generators."""
        _check_making({"": data}, decode, transform, fields, seed)
        self._data = data
        self._making = Making(decode=decode, transform=transform, fields=fields, seed=seed)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int | tuple[int, int]) -> Any:
        epoch, number = index if isinstance(index, tuple) else (0, index)
        return self._making.item(self._data, epoch, number)


class StepDraws:
    """The draws of each step from `start` on and before `stop`, of one rank: a `batch_sampler` for a `FieldDataset`, in a run's
    order. Raises DataError for an order over several sources."""

    def __init__(self, order: DataOrder, start: int, stop: int, rank: int = 0, world_size: int = 1) -> None:
        order_of(order)
        rank, world_size = rank_of(rank, world_size)
        start, end = steps_of(start, whole("stop", stop, 0))
        if len(order.names) != 1:
            fix = "is over several sources; read them with `FieldBatches`, or take an order over one"
            raise DataError("order", ", ".join(order.names), fix)
        self._order, self._rank, self._world_size, self._steps = order, rank, world_size, range(start, end or 0)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in self._steps:
            rows = draws_of_rank(self._order, step, self._rank, self._world_size)
            yield list(zip(rows.epoch.tolist(), rows.sample.tolist(), strict=True))


class FieldBatches(IterableDataset[Any]):
    """Iterable: whole batches of one rank, for `DataLoader(dataset, batch_size=None)`.

    `state_dict` is a data cursor over the batches that were delivered: the same for every rank, and for a gang of any size. Each
    iteration goes on from there, up to the step `stop`. It refuses loader processes, which would make ahead what nobody has
    counted; its own threads do that. `waited_s` tells the waits of the last iteration by their cause.
    """

    def __init__(
        self,
        data: SampleData | Mapping[str, SampleData],
        order: DataOrder,
        decode: Decode,
        transform: Transform | None = None,
        stop: int | None = None,
        *,
        fields: Sequence[str] | None = None,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
        rank: int = 0,
        world_size: int = 1,
        depth: int = DEPTH,
        threads: int = THREADS,
    ) -> None:
        """data: of one source, or of each source of the order by its name."""
        order_of(order)
        rank, world_size = rank_of(rank, world_size)
        steps_of(0, stop)
        if not isinstance(data, SampleData | Mapping):
            raise DataError("data", shown(data), "give what `open_samples` opened, or a mapping of it by the order's sources")
        sources = sources_of(data, order)
        _check_making(sources, decode, transform, fields, seed)
        callable_of("collate", collate, "from a list of items to a batch")
        self._data, self._order, self._stop, self._collate = data, order, stop, collate
        self._making = Making(decode=decode, transform=transform, fields=fields, seed=seed)
        self._rank, self._world_size = rank, world_size
        self._depth, self._threads = whole("depth", depth), whole("threads", threads)
        self._manifests = {name: one.manifest_hash for name, one in sources.items()}
        self._step = 0
        self.waited_s: Mapping[Cause, float] = {}

    def state_dict(self) -> dict[str, Any]:
        cursor: dict[str, Any] = wire.plain(Cursor, Cursor.after(self._step, self._order, self._manifests))
        return cursor

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises DataError for a state of other data or of another order, or for none."""
        self._step = Cursor.from_state(state).next_step(self._order, self._manifests)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None:
            fix = "write 0: threads make batches ahead already, and a loader process would count what was never delivered"
            raise DataError("num_workers", worker.num_workers, fix)
        with sample_stream(
            self._data, self._order, self._making, self._collate, self._step, self._stop,
            rank=self._rank, world_size=self._world_size, depth=self._depth, threads=self._threads,
        ) as stream:  # fmt: skip
            for batch in stream:
                self._step, self.waited_s = stream.step, dict(stream.stats.waited_s)
                yield batch
