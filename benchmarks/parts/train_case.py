"""What one gang of the training benchmark is asked: a model's size, and how each side trains it. No torch."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

TEXT_BYTES_MAX = 48 * 2**20
ENV = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Of both sides: torchtitan's own starter sets it, and without it memory that is nearly full falls into pieces."""
TEXT = "text.npy"
SAID = "said.json"
CASES = "cases.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A dense decoder. ffn_times, ffn_round: how torchtitan is told the same inner width of the feed-forward."""

    name: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn_dim: int
    ffn_times: float | None
    ffn_round: int
    vocab: int
    sequence: int


DENSE_1B = Size(
    name="1.10B", dim=2048, layers=16, heads=32, kv_heads=8, ffn_dim=8192, ffn_times=1.5, ffn_round=1024, vocab=32_000,
    sequence=8192,
)  # fmt: skip
DENSE_7B = Size(
    name="7.24B", dim=4096, layers=32, heads=32, kv_heads=8, ffn_dim=14_336, ffn_times=1.3, ffn_round=1024, vocab=32_000,
    sequence=8192,
)  # fmt: skip
SIZES = {"dense_1b": DENSE_1B, "dense_7b": DENSE_7B, "fp8_7b": DENSE_7B}


def tiny(size: Size) -> Size:
    """The same part played on a CPU."""
    return replace(
        size, name=f"tiny in the part of {size.name}", dim=64, layers=4, heads=4, kv_heads=2, ffn_dim=176, ffn_times=None,
        ffn_round=16, vocab=256, sequence=64,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """options: fields of our recipe, or of torchtitan's configuration by dotted names. Timed are `repeats` times `steps` steps,
    after `warm` ones; losses: of so many steps at least are wanted. profiled: what the device did in two more steps is told."""

    size: Size
    batch: int
    options: dict[str, Any] = field(default_factory=dict)
    warm: int = 8
    steps: int = 10
    repeats: int = 5
    losses: int = 0
    profiled: bool = False

    @property
    def total(self) -> int:
        return max(self.warm + self.steps * self.repeats, self.losses)

    def words(self) -> str:
        return ", ".join([f"batch {self.batch}", *(f"{name} {value}" for name, value in self.options.items())])


Answer = dict[str, Any]


def run_gang(side: str, cases: Sequence[Case], ranks: int, folder: Path, limit_s: float, quiet: bool) -> list[Answer]:
    """What rank 0 of a gang of this file's own ranks says of each case; of those that it did not come to, that they failed."""
    (folder / CASES).write_text(json.dumps([asdict(case) for case in cases]))
    (folder / SAID).unlink(missing_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [sys.executable, sys.argv[0], "--as-rank", str(folder), "--side", side]
    started = []
    for rank in range(ranks):
        torchrun = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        own = {**torchrun, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        log = (folder / f"{side}-{rank}.log").open("ab")
        started.append(subprocess.Popen(words, env={**ENV, **os.environ, **own}, stdout=log, stderr=log, start_new_session=True))
        log.close()
    codes = _ended(started, limit_s)
    said: list[Answer] = json.loads((folder / SAID).read_text()) if (folder / SAID).is_file() else []
    if any(codes) and not quiet:
        sys.stderr.write(f"{side}: ranks ended with {codes}\n{_end_of(folder / f'{side}-0.log')}\n")
    why = f"ranks ended with {codes}: {_end_of(folder / f'{side}-0.log', 1)}"
    return [*said, *({"failed": why} for _ in cases[len(said) :])]


def _ended(started: Sequence["subprocess.Popen[bytes]"], limit_s: float) -> list[int]:
    """Their exit codes. Once one has failed, or when it takes too long, the others are ended: they would wait for it."""
    until_s = time.monotonic() + limit_s
    while any(one.poll() is None for one in started):
        if time.monotonic() > until_s or any(one.poll() not in (None, 0) for one in started):
            for one in started:
                if one.poll() is None:
                    os.killpg(one.pid, signal.SIGKILL)
                one.wait()
        time.sleep(0.05)
    return [one.returncode for one in started]


def _end_of(log: Path, lines: int = 12) -> str:
    found = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(found[-lines:])[-2000:]


def cases_in(folder: Path) -> list[Case]:
    told = json.loads((folder / CASES).read_text())
    return [Case(**{**one, "size": Size(**one["size"])}) for one in told]


# The text that both sides train on


def write_text(folder: Path, vocab: int, bytes_max: int = TEXT_BYTES_MAX) -> int:
    """Sources of Python and torch, two bytes a token, the commonest ones with numbers of their own; how many tokens there are."""
    pairs = np.frombuffer(_sources(bytes_max), dtype="<u2")
    commonest = np.argsort(-np.bincount(pairs, minlength=2**16), kind="stable")[: vocab - 1]
    number_of = np.full(2**16, vocab - 1, dtype=np.uint16)
    number_of[commonest] = np.arange(len(commonest), dtype=np.uint16)
    np.save(folder / TEXT, number_of[pairs])
    return len(pairs)


def _sources(bytes_max: int) -> bytes:
    spec = importlib.util.find_spec("torch")
    roots = [Path(os.__file__).parent, *(Path(one) for one in (spec.submodule_search_locations or () if spec else ()))]
    found = bytearray()
    for path in (path for root in roots for path in _python_files(root)):
        found += path.read_bytes()
        if len(found) >= bytes_max:
            break
    return bytes(found[: min(len(found), bytes_max) // 2 * 2])


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(one for one in folders if one not in ("site-packages", "dist-packages", "__pycache__"))
        yield from (Path(folder) / name for name in sorted(files) if name.endswith(".py"))


class Text:
    """Samples of s + 1 tokens, in one order for any side. Each rank reads its part of a step's batch."""

    def __init__(self, folder: Path, sequence: int, rank: int, ranks: int) -> None:
        self._tokens = np.load(folder / TEXT, mmap_mode="r")
        self._sequence, self._rank, self._ranks = sequence, rank, ranks
        self._samples = (len(self._tokens) - 1) // sequence

    def batch(self, step: int, size: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Of step `step`, counted from 1: (size, s + 1)."""
        first = ((step - 1) * self._ranks + self._rank) * size
        # By a stride that no number of samples shares a factor with: neighbours in a file are not neighbours in a batch.
        starts = [(first + at) * 7919 % self._samples * self._sequence for at in range(size)]
        return np.stack([self._tokens[start : start + self._sequence + 1] for start in starts]).astype(np.int64)
