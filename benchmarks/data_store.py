"""What reading training data from an object store costs, through the node's cache: part of data.py.

Usage: python benchmarks/data.py --only s3_ratio|data_wait_percent [--quick]. The store is a SeaweedFS server on this machine, which
takes its part of the cores, as do the writes of what it sends into the cache. The peer is obstore alone on the same bytes, which
keeps nothing; what it costs to keep them in plain files is told beside it.
"""

import argparse
import importlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from phalanx.job.data.stored import StoredData
    from phalanx.storage.objects import ObjectStore

MIB = 2**20
PEER_SETTINGS = ((8, 1), (8, 4), (8, 8), (16, 8), (4, 16))
"""Threads, and MiB of a range: the fastest is the peer."""

RATIO_MIN = 0.8
TURNS, TURNS_QUICK = 15, 5
SEQUENCE, STEP_S, TOKENS_PER_S = 2048, 0.1, 1_000_000
STEPS, STEPS_QUICK, WARM_STEPS = 200, 60, 2
BLOCK_SAMPLES, WINDOW_BLOCKS = 2048, 8
"""Blocks of 8 MiB, as they are fetched, mixed by 8: a window is 16,384 samples, which the node reads in 33 s."""

WINDOW_MIB = BLOCK_SAMPLES * WINDOW_BLOCKS * SEQUENCE * 2 // MIB
WAIT_PERCENT_MAX = 1.0
LIMIT_BYTES = 4 * 2**30
Answer = dict[str, Any]


def s3_ratio(options: argparse.Namespace) -> Answer:
    """Blocks of every shard fetched, checked, and put into an empty cache, in turns with plain ranged reads."""
    turns = TURNS_QUICK if options.quick else TURNS
    with stored(options) as (url, folder):
        plain, sizes = plain_store(url), shard_sizes(folder)
        tried = {setting: min(timed(lambda s=setting: read_plain(plain, sizes, *s)) for _ in range(3)) for setting in PEER_SETTINGS}  # type: ignore[misc]
        best = min(tried, key=lambda setting: tried[setting])
        times: dict[str, list[float]] = {"peer": [], "kept": [], "ours": []}
        for turn in range(turns):
            times["peer"].append(timed(lambda: read_plain(plain, sizes, *best)))
            times["kept"].append(timed(lambda turn=turn: read_plain(plain, sizes, *best, keep=folder.parent / f"kept-{turn}")))  # type: ignore[misc]
            shutil.rmtree(folder.parent / f"kept-{turn}")
            with cold(url, folder.parent / f"cache-{turn}") as data:
                times["ours"].append(timed(lambda data=data: read_all(data)))  # type: ignore[misc]
    mb = sum(sizes.values()) / 1e6
    rates = {name: mb / statistics.median(found) for name, found in times.items()}
    ratio, kept = (
        statistics.median(theirs / ours for theirs, ours in zip(times[name], times["ours"], strict=True))
        for name in ("peer", "kept")
    )
    setting = f"{best[0]} x {best[1]} MiB"
    print(
        f"s3_ratio: {mb:.0f} MB, ours {rates['ours']:.0f} MB/s, obstore {rates['peer']:.0f} with {setting}, ratio {ratio:.3f}; "
        f"obstore into files {rates['kept']:.0f}, ratio {kept:.3f}"
    )
    return {
        "id": "s3_ratio", "ours": round(rates["ours"], 1), "peer": round(rates["peer"], 1), "ratio": round(ratio, 3),
        "unit": "MB/s", "peer_setting": setting, "peer_into_files": round(rates["kept"], 1), "into_files_ratio": round(kept, 3),
        "mb": round(mb, 1), "turns": turns, "load": os.getloadavg()[0],
        "target": f"ratio >= {RATIO_MIN}", "holds": ratio >= RATIO_MIN,
    }  # fmt: skip


def data_wait_percent(options: argparse.Namespace) -> Answer:
    """Share of the time that steps of 100 ms wait for their batch of 100,000 tokens, from an empty cache, after the first two."""
    from phalanx.job.data.blocks import BlockShuffle
    from phalanx.job.data.draws import PlainOrder, rows_of_rank
    from phalanx.job.data.stream import BatchStream

    steps = STEPS_QUICK if options.quick else STEPS
    batch = -(-int(TOKENS_PER_S * STEP_S) // SEQUENCE)
    waits = []
    with stored(options) as (url, folder), cold(url, folder.parent / "cache") as data:
        shuffle = BlockShuffle(BLOCK_SAMPLES, WINDOW_BLOCKS)
        order = PlainOrder(num_samples=data.num_samples("train", SEQUENCE), seed=0, global_batch=batch, shuffle=shuffle)
        with BatchStream(data, "train", SEQUENCE, rows_of_rank(order), 0, stop=steps) as stream:
            for step in range(steps):
                waits.append(timed(lambda: next(stream)))
                if step == WARM_STEPS - 1:
                    before = stream.stats.waited_s
                time.sleep(STEP_S)
            by_cause = {name: round(1e3 * (waited - before[name]), 1) for name, waited in stream.stats.waited_s.items()}
    waited = sum(waits[WARM_STEPS:])
    first_ms, longest_ms = 1e3 * waits[0], 1e3 * max(waits[WARM_STEPS:])
    percent = 100 * waited / (waited + STEP_S * (steps - WARM_STEPS))
    print(
        f"data_wait_percent: {percent:.3f} % of {steps - WARM_STEPS} steps of {batch} samples; the first batch {first_ms:.0f} ms, "
        f"the longest wait after two steps {longest_ms:.0f} ms"
    )
    return {
        "id": "data_wait_percent", "ours": round(percent, 3), "unit": "%", "first_batch_ms": round(first_ms, 1),
        "longest_ms": round(longest_ms, 1), "waited_ms": by_cause, "steps": steps, "batch": batch, "window_mib": WINDOW_MIB,
        "load": os.getloadavg()[0],
        "target": f"ours < {WAIT_PERCENT_MAX}", "holds": percent < WAIT_PERCENT_MAX,
    }  # fmt: skip


@contextmanager
def stored(options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """A data set in the store of a server of its own, by its URL, and its folder."""
    from phalanx.job.data.push import push

    data = importlib.import_module("data")
    store = importlib.import_module("checkpoint_store")
    with data.corpus(options) as place, store.object_store():
        yield push(place.folder, "s3://bench/data"), place.folder


@contextmanager
def cold(url: str, folder: Path) -> "Iterator[StoredData]":
    """The data set over an empty cache."""
    from phalanx.job.data.stored import open_url
    from phalanx.storage.cache.node_cache import NodeCache

    cache = NodeCache(folder, LIMIT_BYTES)
    try:
        yield open_url(url, cache)
    finally:
        cache.close()
        shutil.rmtree(folder)


def read_all(data: "StoredData") -> None:
    shards, cache = data.stored["train"].stored, data.source.cache
    units = shards.units(shards.firsts(np.arange(len(shards.checked))))
    cache.hold(units, shards.origin)
    cache.release(units)


def plain_store(url: str) -> "ObjectStore":
    from phalanx.storage.objects import open_store

    return open_store(url)


def shard_sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.glob("train-*.bin"))}


def read_plain(store: "ObjectStore", sizes: dict[str, int], threads: int, mib: int, keep: Path | None = None) -> None:
    """Every byte, once."""
    ranges = [(key, begin, min(mib * MIB, size - begin)) for key, size in sizes.items() for begin in range(0, size, mib * MIB)]
    if keep is not None:
        keep.mkdir()

    def read(one: tuple[str, int, int]) -> int:
        found = store.read_range(*one)
        if keep is not None:
            (keep / f"{one[0]}-{one[1]}").write_bytes(found)
        return len(found)

    with ThreadPoolExecutor(threads) as pool:
        if sum(pool.map(read, ranges)) != sum(sizes.values()):
            raise SystemExit("a range came short")


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
