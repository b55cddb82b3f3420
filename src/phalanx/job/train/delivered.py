"""Which batches of a run were delivered: a loader's state, its length and its records are made of that, whatever a batch holds."""

import inspect
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, get_worker_info

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data.checked import steps_of, unknown, whole
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.deliveries import DeliveryLog
from phalanx.job.data.draws import DataOrder
from phalanx.job.data.order import Indices
from phalanx.job.data.quarantine import set_aside_of
from phalanx.job.data.sound import SoundOrder, tried


class Stream(Protocol):
    """Batches of the steps to come, read ahead. step: of the next one."""

    @property
    def step(self) -> int: ...
    def __next__(self) -> Any: ...
    def close(self) -> None: ...


_DECIDED: Final = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
_log: Final = logging.getLogger(__name__)
B = TypeVar("B")
S = TypeVar("S", bound=Stream)

Begin = Callable[[DataOrder, int, int | None], S]
"""From an order to its stream from a step on, up to another."""

Read = tuple[Indices, Indices, NDArray[np.uint64]]
"""Of each sample of a batch: its source, which one of it, and the XXH3 of what came."""


class Delivered:
    """Which batches of a run were delivered. Steps are counted from 0; `stop` is the first that is never delivered.

    epoch_steps: batches of what a trainer takes for an epoch, one iteration; None for all up to `stop`. It has nothing to do with
    the epochs of the data, which the order goes through by itself. Without it a second iteration, which would be empty, is refused.
    After a resume in the middle only the rest of that epoch comes, and the next one is whole again. manifests: manifest hash of
    each source. places: its folder or URL. log: where deliveries are recorded.
    """

    def __init__(
        self,
        order: SoundOrder,
        manifests: Mapping[str, str],
        places: Mapping[str, str],
        stop: int | None,
        epoch_steps: int | None,
        log: DeliveryLog | None = None,
    ) -> None:
        steps_of(0, stop)
        if epoch_steps is not None:
            whole("epoch_steps", epoch_steps)
        self._sound, self.stop, self.epoch_steps, self.step, self._begun = order, stop, epoch_steps, 0, 0
        self.manifests, self._places, self.log = manifests, places, log

    @property
    def order(self) -> DataOrder:
        """In which the next batch is read: without what was set aside."""
        return self._sound.order

    def state_dict(self) -> dict[str, Any]:
        """A data cursor over what was delivered: the same for every rank, and for a gang of any size."""
        cursor: dict[str, Any] = wire.plain(Cursor, Cursor.after(self.step, self.order, self.manifests))
        return cursor

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next batch is the one after those, without what was set aside. Raises DataError for a state of other data or of
        another order, or for none."""
        cursor = Cursor.from_state(state)
        self._sound.resume(cursor)
        self.step = self._begun = cursor.next_step(self.order, self.manifests, self._places)

    def end(self) -> int | None:
        """Where the iteration that begins now ends; None for never. Raises DataError where all was delivered in one before."""
        if self.step == self.stop and self.step > self._begun:
            self._over()
        ends = [] if self.stop is None else [self.stop]
        if self.epoch_steps is not None:
            ends.append((self.step // self.epoch_steps + 1) * self.epoch_steps)
        return max(self.step, min(ends)) if ends else None

    def _over(self) -> None:
        """A second pass would be empty: a mistake of who takes the first one for an epoch. With `epoch_steps` an empty iteration is
        how a trainer, which counts epochs by itself, hears of the end: an error would take its last save. A run that goes on from a
        state at its end is over too, and rightly has nothing to do."""
        if self.epoch_steps is not None:
            _log.warning("no batch is left: all before `stop`, %d, were delivered", self.step)
            return
        fix = (
            "all batches before it were delivered, and this iteration would be empty; give `epoch_steps` for several passes, a "
            "larger `stop`, or load a state to read them again"
        )
        raise DataError("stop", self.stop, fix)

    def __len__(self) -> int:
        """Batches of a whole iteration. Raises TypeError, as Python has it, where it never ends."""
        length = self.stop if self.epoch_steps is None else self.epoch_steps
        if length is None:
            raise TypeError("batches without `stop` or `epoch_steps` have no length")
        return length

    def batches(self, begin: Begin[S], read: Callable[[S, B], Read]) -> Iterator[B]:
        """Those of the iteration that goes on now. Where some rank meets damage that the policy sets aside, a stream of the order
        without it takes over, before anybody has used the batch. read: what is to be recorded of one."""
        end = self.end()
        while (yield from self._until_changed(begin, read, end)):
            pass

    def _until_changed(self, begin: Begin[S], read: Callable[[S, B], Read], end: int | None) -> Generator[B, None, bool]:
        """Batches in the order as it is. Whether it then is another one."""
        step = self.step
        with closing(begin(self.order, step, end)) as stream:
            while step != end:
                batch, met = tried(stream.__next__)
                if self._sound.changed_by(met, step):
                    return True
                assert batch is not None
                if self.log is not None:
                    self.log.set_aside(set_aside_of(self.order))
                    self.log.delivered(step, *read(stream, batch))
                self.step = step = stream.step
                yield batch
        return False


class Counted:
    """A loader that has counted what it delivered: its state goes on from there."""

    def __init__(self, delivered: Delivered) -> None:
        self._delivered = delivered

    def state_dict(self) -> dict[str, Any]:
        return self._delivered.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises DataError for a state of other data or of another order, or for none."""
        self._delivered.load_state_dict(state)

    def __len__(self) -> int:
        return len(self._delivered)


class ProcessLoader(Counted):
    """A loader of whole batches of one rank, by any number of loader processes, with a state: what these have fetched ahead is not
    delivered. rows: from an order to what each step's batch is asked of the dataset as. is_far: whether data lies in a store.
    options: of the `DataLoader` that is made for each iteration. Damaged data ends it; a state with blocks set aside is read on.
    """

    def __init__(
        self,
        delivered: Delivered,
        dataset: Dataset[Any],
        rows: Callable[[DataOrder], Callable[[int], list[Any]]],
        is_far: bool,
        options: Mapping[str, Any],
    ) -> None:
        """Raises DataError for an option that is none, and for a number of loader processes that is none."""
        super().__init__(delivered)
        whole("num_workers", options.get("num_workers", 0), 0)
        _check_options(options, [*inspect.signature(type(self).__init__).parameters][1:-1])
        self.dataset, self._rows, self._is_far, self._options = dataset, rows, is_far, options

    def __iter__(self) -> Iterator[Any]:
        start, end = self._delivered.step, self._delivered.end()
        rows, steps = self._rows(self._delivered.order), count(start) if end is None else range(start, end)
        own = torch.Generator().manual_seed(start)  # else each iteration, so each resume, would draw from the global one
        options = {"generator": own, **self._processes(), **self._options}
        for step, batch in enumerate(DataLoader(self.dataset, batch_sampler=map(rows, steps), **options), start):
            self._delivered.step = step + 1
            yield batch

    def _processes(self) -> dict[str, Any]:
        """How they are started: no client of a store outlives a fork."""
        if self._options.get("num_workers", 0) and self._is_far:
            return {"multiprocessing_context": "spawn"}
        return {}


def _check_options(options: Mapping[str, Any], own: Sequence[str]) -> None:
    """own: arguments of the loader itself. Raises DataError for an option that a `DataLoader` does not know, or that is not to be
    chosen: the order says which samples a batch has."""
    known = [name for name in inspect.signature(DataLoader.__init__).parameters if name not in ("self", *_DECIDED)]
    for name in options:
        if name in _DECIDED:
            raise DataError("option", name, "leave it out: the order says which samples each batch has")
        if name not in known:
            raise unknown("option", name, [*own, *known])


def refuse_loader_processes() -> None:
    """Raises DataError in one."""
    worker = get_worker_info()
    if worker is not None:
        fix = "write 0: threads make batches ahead already, and a loader process would count batches that were never delivered"
        raise DataError("num_workers", worker.num_workers, fix)
