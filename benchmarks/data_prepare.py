"""How fast `phalanx data prepare` makes shards of real text, against `tokenizers` on all cores, and what a second process brings.

Usage: python benchmarks/data_prepare.py [--only ID] [--quick] [--folder DIR]. The last line is one JSON object; the exit code is 1
when a claim does not hold. The text is this Python's own standard library, tests and all; the tokenizer a byte-level BPE trained
on it. Ours is the whole command, from the listing of files to a folder that is on the disk; the peer only encodes texts that it has
in memory already. Both run in turns. One machine's cores must be idle for these figures to mean anything.
"""

import argparse
import hashlib
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RUNS, RUNS_QUICK = 5, 3
VOCAB_SIZE = 32_000
PREPARE_RATIO_MIN = 3.0
SPEEDUP_MIN = 1.8
COPIES, COPIES_QUICK = 64, 16
"""Of the text for the second claim, 2 GB of JSON lines: the start of a process and its tokenizer cost half a second of CPU, 30 MB
of text."""

SMALL_FILES_COPIES, SMALL_FILES_RUNS = 16, 2
"""Beside it, as the source tree that it is: of 18 KB a file, most of which is not the text's time but the file's."""

Answer = dict[str, Any]


def prepare_ratio(options: argparse.Namespace) -> Answer:
    """Rate of the whole command with a process for each core over that of `tokenizers` with a thread for each."""
    from phalanx.job.data.prepare import prepare

    texts, folder = options.texts, options.folder / "ratio"
    documents = [path.read_bytes().decode() for path in sorted(texts.iterdir())]
    megabytes = sum(path.stat().st_size for path in texts.iterdir()) / 1e6
    ours_s, peer_s, phases = [], [], set()
    for _ in range(options.runs):
        started = time.perf_counter()
        ids = peer_ids(options.tokenizer, documents)
        peer_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        prepare([texts], folder, tokenizer=options.tokenizer, processes=cores(), progress=lambda at: phases.add(at.phase))
        ours_s.append(time.perf_counter() - started)
    different = sum((Counter(map(fingerprint, ids)) - Counter(map(fingerprint, document_ids(folder)))).values())
    ours, peer = megabytes / statistics.median(ours_s), megabytes / statistics.median(peer_s)
    print(f"prepare: {megabytes:.1f} MB by {cores()} processes: {ours:.1f} MB/s, tokenizers on {cores()} threads {peer:.2f} MB/s")
    print(f"documents whose ids differ: {different} of {len(documents)}")
    return {
        "id": "prepare_ratio", "ours": round(ours, 2), "peer": round(peer, 3), "ratio": round(ours / peer, 2), "unit": "MB/s",
        "text_mb": round(megabytes, 1), "documents": len(documents), "documents_different": different, "phases": sorted(phases),
        "target": f"ratio >= {PREPARE_RATIO_MIN}, no id different",
        "holds": ours / peer >= PREPARE_RATIO_MIN and different == 0,
    }  # fmt: skip


def two_process_speedup(options: argparse.Namespace) -> Answer:
    """Time of the whole command in one process over that in two, on copies of the text as JSON lines; the folders are compared.
    Beside it the CPU time of both, which says what two processes cost even where others want the cores too: half of it is the least
    that they can take. And the same of the text's own small files."""
    found = by_processes(options, as_lines(options.texts, options.folder / "lines", options.copies), options.runs)
    small = by_processes(
        options, copied(options.texts, options.folder / "copies", min(options.copies, SMALL_FILES_COPIES)), SMALL_FILES_RUNS
    )
    (one, two), ratio = found["medians"], found["ratio"]
    print(
        f"processes: {found['text_mb']:.0f} MB of JSON lines: one {one:.2f} s, two {two:.2f} s, {ratio:.2f} times; small files "
        f"{small['ratio']:.2f} times; the same folders: {found['same'] and small['same']}"
    )
    return {
        "id": "prepare_two_process_speedup", "ours": round(ratio, 3), "unit": "times", "text_mb": round(found["text_mb"], 1),
        "one_s": found["wall"][1], "two_s": found["wall"][2], "one_cpu_s": found["cpu"][1], "two_cpu_s": found["cpu"][2],
        "at_most": round(2 * min(found["cpu"][1]) / min(found["cpu"][2]), 2), "same": found["same"] and small["same"],
        "small_files": round(small["ratio"], 3), "small_files_mb": round(small["text_mb"], 1),
        "target": f"ours >= {SPEEDUP_MIN}", "holds": ratio >= SPEEDUP_MIN and found["same"] and small["same"],
    }  # fmt: skip


def by_processes(options: argparse.Namespace, texts: Path, runs: int) -> Answer:
    """Seconds and CPU seconds of each run by one process and by two, in turns."""
    from phalanx.job.data.prepare import prepare

    wall: dict[int, list[float]] = {1: [], 2: []}
    cpu: dict[int, list[float]] = {1: [], 2: []}
    made = {}
    for _ in range(runs):
        for processes in wall:
            started, used = time.perf_counter(), cpu_s()
            made[processes] = prepare([texts], options.folder / "out", tokenizer=options.tokenizer, processes=processes, force=True)
            wall[processes].append(round(time.perf_counter() - started, 2))
            cpu[processes].append(round(cpu_s() - used, 2))
    medians = [statistics.median(found) for found in wall.values()]
    return {
        "wall": wall, "cpu": cpu, "medians": medians, "ratio": medians[0] / medians[1], "same": made[1] == made[2],
        "text_mb": made[1].sources[0].text_bytes / 1e6,
    }  # fmt: skip


CLAIMS: dict[str, Callable[[argparse.Namespace], Answer]] = {
    "prepare_ratio": prepare_ratio, "prepare_two_process_speedup": two_process_speedup,
}  # fmt: skip


def cpu_s() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def peer_ids(tokenizer: Path, documents: list[str]) -> list[list[int]]:
    from phalanx.job.data import tokens

    return tokens.encode(tokens.load(tokenizer), documents)


def document_ids(folder: Path) -> Iterator[list[int]]:
    """Of each document in a prepared folder, without its end mark."""
    import numpy as np

    from phalanx.job.data import manifest as manifests
    from phalanx.job.data.megatron import DTYPES

    manifest, _ = manifests.read(folder)
    for shard in manifest.shards:
        ids = np.fromfile(folder / shard.bin.name, dtype=DTYPES[manifest.dtype])
        ends = np.flatnonzero(ids == manifest.end_of_document)
        for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
            yield ids[start:end].tolist()


def fingerprint(ids: list[int]) -> bytes:
    return hashlib.sha256(repr(ids).encode()).digest()


def collected(folder: Path) -> Path:
    """The standard library's sources that are text, in one folder."""
    folder.mkdir()
    root = Path(sysconfig.get_path("stdlib")).resolve()
    for path in sorted(root.rglob("*.py")):
        data = path.read_bytes()
        if "site-packages" not in path.parts and data and b"\0" not in data and is_utf8(data):
            (folder / str(path.relative_to(root)).replace("/", "+")).write_bytes(data)
    return folder


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def as_lines(texts: Path, folder: Path, copies: int) -> Path:
    """The texts as one JSONL file, and further names of it, of which each is read as a file of its own."""
    folder.mkdir()
    first = folder / "0.jsonl"
    with first.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": path.read_text(encoding="utf-8")}) + "\n" for path in sorted(texts.iterdir()))
    for copy in range(1, copies):
        (folder / f"{copy}.jsonl").hardlink_to(first)
    return folder


def copied(texts: Path, folder: Path, copies: int) -> Path:
    """Names of the same files, of which each is read as a file of its own."""
    for copy in range(copies):
        (folder / str(copy)).mkdir(parents=True)
        for path in texts.iterdir():
            (folder / str(copy) / path.name).hardlink_to(path)
    return folder


def trained(texts: Path, folder: Path) -> Path:
    from phalanx.job.data.prepare import prepare

    prepare([texts], folder, vocab_size=VOCAB_SIZE, training_text_bytes_max=8 * 10**6)
    return Path(shutil.copy(folder / "tokenizer.json", folder.with_suffix(".json")))


def conditions(options: argparse.Namespace) -> Answer:
    versions = {}
    for name in ("tokenizers", "gigatoken", "numpy", "blake3"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "none"
    return {
        "cores": cores(), "load": round(os.getloadavg()[0], 1), "machine": platform.machine(), "runs": options.runs,
        "vocab_size": VOCAB_SIZE, "versions": {"python": platform.python_version(), **versions},
    }  # fmt: skip


def main() -> int:
    """Run the claims that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(CLAIMS), help="run one claim")
    parser.add_argument("--quick", action="store_true", help=f"{COPIES_QUICK} copies and {RUNS_QUICK} runs")
    parser.add_argument("--folder", help="where to write; the system's temporary folder unless given")
    options = parser.parse_args()
    options.runs, options.copies = (RUNS_QUICK, COPIES_QUICK) if options.quick else (RUNS, COPIES)
    with tempfile.TemporaryDirectory(prefix="phalanx-prepare-", dir=options.folder) as folder:
        options.folder = Path(folder)
        options.texts = collected(options.folder / "texts")
        options.tokenizer = trained(options.texts, options.folder / "trained")
        found = conditions(options)
        claims = [CLAIMS[name](options) for name in ([options.only] if options.only else CLAIMS)]
        found["load_after"] = round(os.getloadavg()[0], 1)
    print(json.dumps({"benchmark": "data_prepare", "conditions": found, "claims": claims}))
    return 0 if all(claim["holds"] for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
