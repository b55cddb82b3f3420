"""Batches of samples ahead of their use: the order of the run, whatever is killed, resized or fetched ahead."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.core.errors import DataError
from phalanx.job.data.blocks import BlockShuffle
from phalanx.job.data.draws import DataOrder, PlainOrder, batch
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Mixture, Source
from phalanx.job.data.tars.open import Sample, SampleData, open_samples
from phalanx.job.data.tars.pack import pack
from phalanx.job.data.tars.stream import Making, sample_stream
from phalanx.job.data.waits import CAUSES
from tests.job.data.image_folders import pixels_of, write_images


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SampleData:
    folder = tmp_path_factory.mktemp("stream")
    write_images(folder / "images")
    pack(folder / "images", folder / "data")
    return open_samples(folder / "data")


@pytest.fixture
def order(data: SampleData) -> PlainOrder:
    return PlainOrder(num_samples=len(data), seed=3, global_batch=8, shuffle=BlockShuffle(4, 5))


def noisy(image: Any, random: np.random.Generator) -> tuple[int, int]:
    return int(image.sum()), int(random.integers(10**9))


NOISY = Making(decode=pixels_of, transform=noisy)


def read(
    data: SampleData, order: DataOrder, steps: range, making: Making = NOISY, world_size: int = 1, **more: int
) -> list[list[Any]]:
    """The global batches of these steps, from all ranks."""
    ranks = [
        sample_stream(data, order, making, list, steps.start, steps.stop, rank=rank, world_size=world_size, **more)
        for rank in range(world_size)
    ]
    batches = [[item for part in parts for item in part] for parts in zip(*ranks, strict=True)]
    for stream in ranks:
        stream.close()
    return batches


def test_batches_are_of_the_runs_order(data: SampleData, order: PlainOrder) -> None:
    found = read(data, order, range(3, 12), Making(decode=lambda sample: sample.number))
    assert found == [batch(order, step).sample.tolist() for step in range(3, 12)]


@pytest.mark.parametrize(("world_size", "threads", "depth"), [(1, 4, 1), (3, 1, 3), (8, 2, 2)])
def test_t01_neither_ranks_nor_threads_nor_a_resume_change_what_is_trained_on(
    data: SampleData, order: PlainOrder, world_size: int, threads: int, depth: int
) -> None:
    """Augmentation is the same too, and another in another epoch."""
    whole = read(data, order, range(20))
    halves = read(data, order, range(9)) + read(data, order, range(9, 20), world_size=world_size, threads=threads, depth=depth)
    assert halves == whole
    drawn = [number for rows in whole for _, number in rows]
    assert len(set(drawn)) == len(drawn) == 160 > len(data)
    assert read(data, order, range(3), Making(decode=pixels_of, transform=noisy, seed=1)) != whole[:3]


def test_a_mixture_of_data_sets(data: SampleData, tmp_path: Path) -> None:
    write_images(tmp_path / "images", each=5, side=9)
    pack(tmp_path / "images", tmp_path / "data")
    large = open_samples(tmp_path / "data")
    mixed = MixedOrder(
        Mixture([Source("small", weight=3), Source("large", weight=1)]), {"small": 60, "large": 15}, seed=1, global_batch=8
    )
    with sample_stream({"small": data, "large": large}, mixed, Making(decode=pixels_of), list, stop=4) as stream:
        sides = [[len(image) for image in images] for images in stream]
    assert [sorted(row) for row in sides] == [[6] * 6 + [9] * 2] * 4
    with pytest.raises(DataError, match="lacks large"):
        sample_stream({"small": data}, mixed, NOISY, list)
    with pytest.raises(DataError, match="over several sources"):
        sample_stream(data, mixed, NOISY, list)


def test_an_error_names_its_sample_and_comes_at_its_batch_each_time(data: SampleData, order: PlainOrder) -> None:
    bad = int(batch(order, 2).sample[5])

    def decode(sample: Sample) -> int:
        if sample.number == bad:
            raise ValueError("no picture")
        return sample.number

    with sample_stream(data, order, Making(decode=decode), list, stop=9, threads=3) as stream:
        assert len([next(stream), next(stream)]) == 2
        for _ in range(2):
            with pytest.raises(ValueError, match="no picture") as caught:
                next(stream)
            assert f"sample {bad}, {data.key(bad)}" in caught.value.__notes__[0]
        assert stream.step == 2 and stream.stats.delivered == 2


def test_no_more_than_depth_batches_are_made_ahead_and_closing_ends_the_threads(data: SampleData, order: PlainOrder) -> None:
    begun, go = threading.Semaphore(0), threading.Event()
    made: list[int] = []

    def collate(items: Sequence[int]) -> int:
        made.append(len(items))
        begun.release()
        assert go.wait(60)
        return sum(items)

    before = set(threading.enumerate())
    stream = sample_stream(data, order, Making(decode=lambda sample: sample.number), collate, depth=3, threads=5)
    for _ in range(3):
        assert begun.acquire(timeout=60)
    assert len(made) == 3
    go.set()
    next(stream)
    stream.close()
    assert set(threading.enumerate()) == before and len(made) <= 4
    with pytest.raises(ValueError, match="closed"):
        next(stream)


def test_a_wait_is_named_by_its_cause(data: SampleData, order: PlainOrder) -> None:
    """Reading is quick; who is slow is waited for."""
    slow = threading.Event()
    making = Making(decode=lambda sample: sample.number, transform=lambda number, _: slow.wait(0.005) or number)
    with sample_stream(data, order, making, list, stop=3, threads=1, depth=1) as stream:
        assert len(list(stream)) == 3
        assert stream.stats.cause == "transform" and stream.stats.waited_s["transform"] > 0.05
        assert set(stream.stats.waited_s) == set(CAUSES)


@pytest.mark.parametrize("field", ["depth", "threads", "start"])
def test_what_no_stream_can_have_is_refused(data: SampleData, order: PlainOrder, field: str) -> None:
    with pytest.raises(DataError, match=field):
        sample_stream(data, order, NOISY, list, **{field: -1})


def test_an_order_of_more_samples_than_there_are_is_refused_before_the_first_batch(data: SampleData) -> None:
    longer = PlainOrder(num_samples=len(data) + 1, seed=3, global_batch=8)
    with pytest.raises(DataError, match=r"samples of data in the order: 61: the data has 60; make the order by len\(data\)"):
        sample_stream(data, longer, NOISY, list)
