"""What reading training data costs, against a bare memory map and against PyTorch's own loader over one.

Usage: python benchmarks/data.py [--only ID] [--quick] [--folder DIR]. The last line is one JSON object; the exit code is 1 when a
claim does not hold. Samples are 2,048 tokens and the next one, batches are 8 of them as int64, all in one process without loader
processes, after one pass over everything: the page cache is warm and our blocks are checked, with checksums on.

From an object store: see data_store.py.

The bare reader is the fastest that NumPy has: one file, a window view made beforehand, `windows[starts].astype(int64)`; no shards,
no manifest, no bounds. Peers and ours read the same samples in turns, and a ratio is the median over the turns.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

if TYPE_CHECKING:
    from phalanx.job.data.manifest import Shard
    from phalanx.job.data.open import TokenData

SEQUENCE, BATCH = 2048, 8
SHARDS, SHARDS_QUICK = (67_110_000, 58_690_000), (4_200_000, 3_700_000)
"""Tokens of each: 125.8M, 252 MB, of shards as `prepare` makes them."""

TURNS, TURNS_QUICK = 300, 60
BATCHES = 100
"""Of one turn: a few milliseconds, so that a pair of turns meets the same machine however busy it is."""

RUNS, RUNS_QUICK = 25, 7
OPEN_SHARDS = 10_000
OPEN_RUNS, OPEN_RUNS_QUICK = 7, 3
VOCAB = 50_000
RATIO_MIN = 0.8
FIRST_BATCH_MS_MAX = 50.0
SEEK_MS_MAX = 10.0
OPEN_MS_MAX, OPEN_RSS_MB_MAX = 200.0, 100.0

Answer = dict[str, Any]
Reader = Callable[[NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The same tokens as a prepared folder and as one flat file."""

    folder: Path
    flat: Path


# The claims: each prints its own line


def sequential_ratio(options: argparse.Namespace) -> Answer:
    """Samples in the order of the file."""
    return gather_ratio("sequential_ratio", options, lambda count, _: np.arange(count))


def shuffled_ratio(options: argparse.Namespace) -> Answer:
    """Samples in random order, over both shards."""
    return gather_ratio("shuffled_ratio", options, lambda count, generator: generator.permutation(count))


def gather_ratio(name: str, options: argparse.Namespace, order: Callable[[int, np.random.Generator], NDArray[np.int64]]) -> Answer:
    from phalanx.job.data.open import open_data

    turns = TURNS_QUICK if options.quick else TURNS
    with corpus(options) as place:
        data, windows = open_data(place.folder), bare_windows(place.flat)
        count = data.num_samples("train", SEQUENCE)
        into = np.empty((BATCH, SEQUENCE + 1), dtype=np.int64)
        readers: dict[str, Reader] = {
            "bare": lambda indices: windows[indices * SEQUENCE].astype(np.int64),
            "ours": lambda indices: data.gather("train", indices, SEQUENCE),
            "ours_into": lambda indices: data.gather("train", indices, SEQUENCE, out=into),
        }
        for begin in range(0, count, BATCH):  # the warm pass, and that both read the same
            indices = np.arange(begin, min(count, begin + BATCH))
            if (readers["bare"](indices) != readers["ours"](indices)).any():
                raise SystemExit(f"samples from {begin} on differ")
        samples = np.resize(order(count, np.random.default_rng(0)), (turns, BATCHES, BATCH))
        times: dict[str, list[float]] = {reader: [] for reader in readers}
        for turn in range(turns):
            for reader, read in readers.items():
                times[reader].append(timed(lambda read=read, turn=turn: read_all(read, samples[turn])))  # type: ignore[misc]
        torch_s = torch_loader_s(windows, samples[: TURNS_QUICK // 10].reshape(-1, BATCH)) / (TURNS_QUICK // 10)
    ratios = {
        reader: statistics.median(bare / own for bare, own in zip(times["bare"], times[reader], strict=True)) for reader in readers
    }
    mtokens = BATCHES * BATCH * SEQUENCE / 1e6
    rates = {reader: mtokens / statistics.median(found) for reader, found in times.items()}
    print(
        f"{name}: ours {rates['ours']:.0f} Mtok/s, into one array {rates['ours_into']:.0f}, bare {rates['bare']:.0f}, "
        f"ratio {ratios['ours']:.3f}" + (f", torch DataLoader {mtokens / torch_s:.0f}" if torch_s else "")
    )
    return {
        "id": name, "ours": round(rates["ours"], 1), "peer": round(rates["bare"], 1), "ratio": round(ratios["ours"], 3),
        "unit": "Mtok/s", "into_one_array": round(rates["ours_into"], 1), "into_one_array_ratio": round(ratios["ours_into"], 3),
        "torch_dataloader": round(mtokens / torch_s, 1) if torch_s else None, "mtokens": round(sum(sizes(options)) / 1e6, 1),
        "target": f"ratio >= {RATIO_MIN}", "holds": ratios["ours"] >= RATIO_MIN,
    }  # fmt: skip


def first_batch_ms(options: argparse.Namespace) -> Answer:
    """From the folder's name to a first shuffled batch: opening, and reading and checking the blocks that it touches."""
    from phalanx.job.data.open import open_data

    runs, generator = RUNS_QUICK if options.quick else RUNS, np.random.default_rng(0)
    ours, bare = [], []
    with corpus(options) as place:
        count = open_data(place.folder, verify=True).num_samples("train", SEQUENCE)  # the warm pass
        for _ in range(runs + 1):
            indices = generator.integers(0, count, BATCH)
            ours.append(timed(lambda indices=indices: open_data(place.folder).gather("train", indices, SEQUENCE)))  # type: ignore[misc]
            bare.append(timed(lambda indices=indices: bare_windows(place.flat)[indices * SEQUENCE].astype(np.int64)))  # type: ignore[misc]
    return at_most("first_batch_ms", [1e3 * one for one in ours[1:]], [1e3 * one for one in bare[1:]], FIRST_BATCH_MS_MAX)


def seek_ms(options: argparse.Namespace) -> Answer:
    """A stream of shuffled batches begun at a random cursor of an epoch far away, until its first batch is there."""
    from phalanx.job.data.open import open_data
    from phalanx.job.data.order import batch_indices
    from phalanx.job.data.stream import BatchStream

    runs, generator = RUNS_QUICK if options.quick else RUNS, np.random.default_rng(0)
    ours, bare = [], []
    with corpus(options) as place:
        data, windows = open_data(place.folder), bare_windows(place.flat)
        count = data.num_samples("train", SEQUENCE)
        for begin in range(0, count, BATCH):
            data.gather("train", np.arange(begin, min(count, begin + BATCH)), SEQUENCE)
        for _ in range(runs + 1):
            step = int(generator.integers(0, 10**9))
            began = time.perf_counter()
            with BatchStream(data, "train", SEQUENCE, lambda at: batch_indices(0, at, BATCH, count), step) as stream:
                next(stream)
                ours.append(1e3 * (time.perf_counter() - began))
            bare.append(1e3 * timed(lambda step=step: windows[batch_indices(0, step, BATCH, count) * SEQUENCE].astype(np.int64)))  # type: ignore[misc]
    return at_most("seek_ms", ours[1:], bare[1:], SEEK_MS_MAX)


def open_10k_shards_ms(options: argparse.Namespace) -> Answer:
    """Opening a manifest of 10,000 shards of 128 MiB in a new process; the peer parses its JSON and looks at the sizes."""
    with tempfile.TemporaryDirectory(prefix="phalanx-data-", dir=options.folder) as folder:
        write_many(Path(folder))
        words = [sys.executable, __file__, "--open", folder]
        runs = OPEN_RUNS_QUICK if options.quick else OPEN_RUNS
        found = [json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout) for _ in range(runs)]
    answer = at_most("open_10k_shards_ms", [one["ours"] for one in found], [one["bare"] for one in found], OPEN_MS_MAX)
    rss_mb = max(one["rss_mb"] for one in found)
    first_ms, cpu_ms = (statistics.median(one[name] for one in found) for name in ("first", "cpu"))
    print(f"open_10k_shards_ms: {cpu_ms:.0f} ms of CPU; the first {first_ms:.0f} ms; peak memory of the process {rss_mb:.0f} MB")
    return {
        **answer, "cpu_ms": round(cpu_ms, 1), "first_ms": round(first_ms, 1), "rss_mb": round(rss_mb, 1),
        "target": f"ours <= {OPEN_MS_MAX} and rss_mb <= {OPEN_RSS_MB_MAX}",
        "holds": answer["holds"] and rss_mb <= OPEN_RSS_MB_MAX,
    }  # fmt: skip


def at_most(name: str, ours: list[float], bare: list[float], most: float) -> Answer:
    """A claim on a median, which also says the worst."""
    median, peer = statistics.median(ours), statistics.median(bare)
    print(f"{name}: {median:.2f} ms, worst of {len(ours)} {max(ours):.2f}, bare {peer:.2f}")
    return {
        "id": name, "ours": round(median, 2), "worst": round(max(ours), 2), "peer": round(peer, 2),
        "ratio": round(median / peer, 2), "unit": "ms", "target": f"ours <= {most}", "holds": median <= most,
    }  # fmt: skip


def from_store(name: str) -> Callable[[argparse.Namespace], Answer]:
    """What data_store.py, beside this file, calls by that name."""

    def claim(options: argparse.Namespace) -> Answer:
        answer: Answer = getattr(importlib.import_module("data_store"), name)(options)
        return answer

    return claim


CLAIMS: dict[str, Callable[[argparse.Namespace], Answer]] = {
    "sequential_ratio": sequential_ratio, "shuffled_ratio": shuffled_ratio, "first_batch_ms": first_batch_ms, "seek_ms": seek_ms,
    "open_10k_shards_ms": open_10k_shards_ms, "s3_ratio": from_store("s3_ratio"),
    "data_wait_percent": from_store("data_wait_percent"),
}  # fmt: skip


# Readers


def bare_windows(path: Path) -> NDArray[np.uint16]:
    tokens: NDArray[np.uint16] = np.asarray(np.memmap(path, dtype=np.dtype("<u2"), mode="r"))
    return sliding_window_view(tokens, SEQUENCE + 1)


def torch_loader_s(windows: NDArray[np.uint16], samples: NDArray[np.int64]) -> float:
    """Seconds of the fastest of three passes of torch's DataLoader over the memory map, a sample at a time; 0 without torch."""
    try:
        import torch
        from torch.utils.data import DataLoader, Dataset
    except ImportError:
        return 0.0

    class Mapped(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(windows) // SEQUENCE

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.from_numpy(windows[index * SEQUENCE].astype(np.int64))

    loader = DataLoader(Mapped(), batch_sampler=samples.tolist())
    return min(timed(lambda: [batch.shape for batch in loader]) for _ in range(3))


def read_all(read: Reader, samples: NDArray[np.int64]) -> None:
    """One batch at a time, none kept."""
    for indices in samples:
        read(indices)


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


# What is read


def sizes(options: argparse.Namespace) -> tuple[int, ...]:
    return SHARDS_QUICK if options.quick else SHARDS


@contextmanager
def corpus(options: argparse.Namespace) -> Iterator[Corpus]:
    """Random tokens, written as `prepare` writes them."""
    from phalanx.job.data.shard_writer import ShardWriter

    with tempfile.TemporaryDirectory(prefix="phalanx-data-", dir=options.folder) as name:
        place = Corpus(Path(name) / "data", Path(name) / "flat.bin")
        place.folder.mkdir()
        writer, generator = ShardWriter(place.folder, "train", "uint16", 1), np.random.default_rng(0)
        with place.flat.open("wb") as flat:
            for size in sizes(options):
                tokens = generator.integers(0, VOCAB, size, dtype=np.uint16).tobytes()
                writer.add_document(tokens)
                flat.write(tokens)
        write_manifest(place.folder, tuple(writer.finish()))
        yield place


def write_many(folder: Path) -> None:
    """Shards of holes: opening looks at their sizes alone."""
    import hashlib

    from phalanx.job.data.manifest import Shard

    tokens = 64 * 2**20
    shards = []
    for number in range(OPEN_SHARDS):
        name, digest = f"train-{number:05d}", hashlib.sha256(str(number).encode()).hexdigest()
        with (folder / f"{name}.bin").open("wb") as file:
            file.truncate(2 * tokens)
        shards.append(
            Shard(
                name=name, split="train", tokens=tokens, documents=1000, bin_bytes=2 * tokens, bin_sha256=digest,
                idx_bytes=20_042, idx_sha256=digest[::-1], xxh3_bytes=1024, xxh3_sha256=digest,
            )
        )  # fmt: skip
    write_manifest(folder, tuple(shards))


def write_manifest(folder: Path, shards: "tuple[Shard, ...]") -> None:
    from phalanx.job.data import manifest as manifests
    from phalanx.job.data.manifest import FORMAT, MANIFEST, TOKENIZER, FileEntry, Manifest, SplitCount
    from phalanx.storage.hashes import sha256_file

    (folder / TOKENIZER).write_text("{}")
    counted = SplitCount(
        tokens=sum(shard.tokens for shard in shards), documents=sum(shard.documents for shard in shards), text_bytes=0
    )
    manifest = Manifest(
        format=FORMAT, vocab_size=VOCAB, dtype="uint16", end_of_document=0,
        tokenizer=FileEntry(name=TOKENIZER, size_bytes=2, sha256=sha256_file(folder / TOKENIZER)),
        splits={"train": counted, "held_out": SplitCount(tokens=0, documents=0, text_bytes=0)},
        shards=shards, sources=(), parameters={},
    )  # fmt: skip
    (folder / MANIFEST).write_bytes(manifests.encode(manifest))


def open_main(folder: Path) -> None:
    """A process of its own: once to load what libraries load late, then ours and the bare reader in turn."""
    from phalanx.job.data.open import open_data

    first = timed(lambda: open_data(folder))
    began, cpu = time.perf_counter(), time.process_time()
    data: TokenData = open_data(folder)
    ours, cpu = time.perf_counter() - began, time.process_time() - cpu
    rss_mb = peak_mb()
    if data.num_tokens("train") != OPEN_SHARDS * 64 * 2**20:
        raise SystemExit("the manifest was not read whole")
    found = {"ours": ours, "first": first, "cpu": cpu, "bare": timed(lambda: bare_open(folder))}
    print(json.dumps({"rss_mb": rss_mb, **{name: 1e3 * seconds for name, seconds in found.items()}}))


def bare_open(folder: Path) -> None:
    found = json.loads((folder / "manifest.json").read_bytes())
    if any((folder / f"{shard['name']}.bin").stat().st_size != shard["bin_bytes"] for shard in found["shards"]):
        raise SystemExit("a size differs")


def peak_mb() -> float:
    """Of this program; what getrusage says began with the process that it was forked from."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    place = str(Path(options.folder or tempfile.gettempdir()).resolve())
    under = [mount for mount in mounts if place == mount[1] or place.startswith(mount[1].rstrip("/") + "/")]
    return {
        "cpu": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0)), "card": "none",
        "file_system": max(under, key=lambda mount: len(mount[1]))[2] if under else "unknown", "load": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), **versions("phalanx", "numpy", "xxhash", "torch")}, "seeds": [0],
    }  # fmt: skip


def versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help="7.9M tokens instead of 125.8M, and fewer turns")
    parser.add_argument("--folder", help="where to write; the system's temporary folder unless given")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        open_main(Path(options.open))
        return 0
    found = conditions(options)
    claims = [CLAIMS[name](options) for name in ([options.only] if options.only else CLAIMS)]
    print(json.dumps({"benchmark": "data", "conditions": found, "claims": claims}))
    return 0 if all(claim["holds"] for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
