"""Batches for a script: prepared data in the run's order, whose cursor is in its checkpoints, and other loaders with waits seen."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch.profiler import record_function

from phalanx.core.errors import UserError
from phalanx.job.data.draws import DataOrder, PlainOrder
from phalanx.job.data.manifest import Split
from phalanx.job.data.open import open_data
from phalanx.job.data.sources import open_sources
from phalanx.job.sdk.session import Session
from phalanx.job.train.datasets import BatchDataset, Data, StepLoader
from phalanx.job.train.device import Rank
from phalanx.job.train.traces.timeline import DATA_WAIT

T = TypeVar("T")


class Watched(Generic[T]):
    """What another iterable gives, with each wait for it told to `waited`."""

    def __init__(self, batches: Iterable[T], waited: Callable[[float], None]) -> None:
        self._batches, self._waited = batches, waited

    def __iter__(self) -> Iterator[T]:
        batches = iter(self._batches)
        while True:
            began_s = time.perf_counter()
            try:
                with record_function(DATA_WAIT):
                    batch = next(batches)
            except StopIteration:
                return
            finally:
                self._waited(time.perf_counter() - began_s)
            yield self.placed(batch)

    def placed(self, batch: T) -> T:
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # raises TypeError where there is none, as of any iterable


class RunLoader(Watched[Any]):
    """Of `run.loader`: batches of this rank on its device, in an order that no restart and no number of ranks changes."""

    def __init__(
        self, loader: BatchDataset | StepLoader, vocab_size: int, device: torch.device, waited: Callable[[float], None]
    ) -> None:
        super().__init__(loader, waited)
        self.loader = loader
        self.vocab_size = vocab_size
        self._device = device

    def placed(self, batch: Any) -> Any:
        return batch.to(self._device, non_blocking=True) if isinstance(batch, torch.Tensor) else batch

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)


def prepared(
    session: Session, rank: Rank, path: str | os.PathLike[str] | None, sequence: int, batch: int, split: Split, seed: int,
    steps: int | None, epoch_steps: int | None, options: Mapping[str, Any],
) -> tuple[BatchDataset | StepLoader, int]:  # fmt: skip
    """The loader, and how many tokens there are. options: of a `DataLoader`; without any, threads of this process
    read ahead. Raises DataError for what is no such data, UserError where none is named."""
    data, order = _opened(session, path, sequence, batch, split, seed)
    given: Any = {"epoch_steps": epoch_steps, "rank": rank.rank, "world_size": rank.world_size}
    if options:
        return StepLoader(data, split, sequence, order, steps, **given, **options), data.vocab_size
    return BatchDataset(data, split, sequence, order, steps, **given), data.vocab_size


def _opened(
    session: Session, path: str | os.PathLike[str] | None, sequence: int, batch: int, split: Split, seed: int
) -> tuple[Data, DataOrder]:
    if path is not None:
        data = open_data(os.fspath(path))
        return data, PlainOrder(num_samples=data.num_samples(split, sequence), seed=seed, global_batch=batch)
    if session.data_source is None:
        raise UserError("path", None, "name a folder made by `phalanx data prepare`, or give the job `data: {path: DIR}`")
    sources = open_sources(session.data_source)
    if split == "train":
        return sources, sources.order(sequence, seed=seed, global_batch=batch)
    first = sources.first
    return first, PlainOrder(num_samples=first.num_samples(split, sequence), seed=seed, global_batch=batch)
