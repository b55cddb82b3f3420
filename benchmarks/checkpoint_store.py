"""What a checkpoint costs in an object store, against plain uploads and downloads: part of checkpoint.py.

Usage: python benchmarks/checkpoint.py --only store_write_ratio|store_restore_ratio [--quick]. The store is a SeaweedFS server on
this machine, which takes its part of the cores; the peer is obstore alone, on the same bytes in the same processes, with as many
parts at once.
"""

import argparse
import contextlib
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint  # type: ignore[import-not-found]  # beside this file, where a script's imports are looked for first

WRITE_RATIO_MIN = 0.8
RESTORE_RATIO_MAX = 1.5
END_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
"""PR_SET_PDEATHSIG (linux/prctl.h), SIGKILL: no server is left behind by a benchmark that is killed."""

Answer = dict[str, Any]


def write_ratio(options: argparse.Namespace) -> Answer:
    """Throughput of a save over that of plain uploads of the same bytes, one object a rank."""
    with object_store() as url:
        answer = checkpoint.gang("store_write", options, url)
    ours, peer = statistics.median(answer["ours_s"]), statistics.median(answer["plain_s"])
    ratio = peer / ours
    size = f"{answer['gb']:.2f} GB by {checkpoint.RANKS} ranks"
    print(f"write to S3: {size}: save {ours:.3f} s, plain uploads {peer:.3f} s, ratio {ratio:.3f}")
    return {
        "id": "store_write_ratio", "ours": round(ours, 4), "peer": round(peer, 4), "ratio": round(ratio, 3), "unit": "s",
        "gb": answer["gb"], "rss_mb": answer["rss_mb"], "load": os.getloadavg()[0],
        "target": f"ratio >= {WRITE_RATIO_MIN}", "holds": ratio >= WRITE_RATIO_MIN,
    }  # fmt: skip


def restore_ratio(options: argparse.Namespace) -> Answer:
    """Time of a restore, every part hashed, over that of plain downloads."""
    with object_store() as url:
        answer = checkpoint.gang("store_restore", options, url)
    ours, peer = statistics.median(answer["ours_s"]), statistics.median(answer["plain_s"])
    ratio = ours / peer
    size = f"{answer['gb']:.2f} GB by {checkpoint.RANKS} ranks"
    print(f"restore from S3: {size}: {ours:.3f} s, plain downloads {peer:.3f} s, ratio {ratio:.3f}")
    return {
        "id": "store_restore_ratio", "ours": round(ours, 4), "peer": round(peer, 4), "ratio": round(ratio, 3), "unit": "s",
        "gb": answer["gb"], "load": os.getloadavg()[0],
        "target": f"ratio <= {RESTORE_RATIO_MAX}", "holds": ratio <= RESTORE_RATIO_MAX,
    }  # fmt: skip


@contextlib.contextmanager
def object_store() -> Iterator[str]:
    """A bucket of a SeaweedFS server, its address and keys in this process's environment."""
    from phalanx.core.errors import PhalanxError
    from phalanx.storage.objects import open_store

    weed, keys = (
        Path(sys.executable).parent / "weed",
        {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16)},
    )
    ports = dict(zip(("master", "volume", "filer", "s3"), free_ports(4), strict=True))
    os.environ.update({**keys, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3']}"})
    off = ["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    with tempfile.TemporaryDirectory(prefix="phalanx-weed-") as folder, (Path(folder) / "log").open("wb") as log:
        here = [f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-bucket=bench"]
        words = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            END_WITH_US,
            str(weed),
            "mini",
            *here,
            *(f"-{name}.port={port}" for name, port in ports.items()),
            *off,
        ]
        server = subprocess.Popen(words, env={**os.environ, "GOMEMLIMIT": "2GiB"}, cwd=folder, stdout=log, stderr=log)
        try:
            until = time.monotonic() + 60
            while True:
                try:
                    open_store("s3://bench/ready").put("probe", b"ready")
                    break
                except PhalanxError:
                    if server.poll() is not None or time.monotonic() > until:
                        raise
            yield "s3://bench/checkpoints"
        finally:
            server.kill()
            server.wait()


def free_ports(count: int) -> list[int]:
    """Ports below 22,000, so that those 10,000 above them, which each service takes too, are free as well."""
    found: list[int] = []
    while len(found) < count:
        port = 10_000 + secrets.randbelow(12_000)
        with contextlib.ExitStack() as stack:
            try:
                for number in (port, port + 10_000):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
        found.append(port)
    return found


def write_role(_folder: Path, options: argparse.Namespace) -> Answer:
    """Saves and plain uploads in turns; how much memory the rank had at most beyond its state."""
    import resource

    import obstore
    import torch.distributed as dist

    from phalanx.job.checkpoint.folder import folder_at
    from phalanx.storage.objects import PART_BYTES, PARTS_AT_ONCE, open_store

    state, rank, root = checkpoint.state_of(options.layers), dist.get_rank(), folder_at(options.url)
    views, act, plain = checkpoint.local_bytes(state), checkpoint.saver(root, state), open_store("s3://bench")._store

    def upload() -> None:
        obstore.put(plain, f"plain-{rank}", iter(views), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours_s, plain_s = [], []
    for run in range(max(options.runs // 2, 2) + 1):
        checkpoint.settle()
        ours_s.append(checkpoint.timed(lambda run=run: act(run + 1)))
        if not run:
            rss_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1000
        if rank == 0:
            root.remove_all()
        checkpoint.settle()
        plain_s.append(checkpoint.timed(upload))
    return {
        "gb": checkpoint.RANKS * sum(map(len, views)) / 1e9,
        "ours_s": ours_s[1:],
        "plain_s": plain_s[1:],
        "rss_mb": round(rss_mb),
    }


def restore_role(_folder: Path, options: argparse.Namespace) -> Answer:
    """Restores and plain downloads of as many bytes by as many requests at once, in turns."""
    from concurrent.futures import ThreadPoolExecutor

    import obstore
    import torch.distributed as dist

    from phalanx.job.checkpoint.folder import folder_at
    from phalanx.job.checkpoint.restore import load_state
    from phalanx.job.checkpoint.whole import open_checkpoint
    from phalanx.storage.objects import PART_BYTES, open_store

    state, rank = checkpoint.state_of(options.layers), dist.get_rank()
    place = checkpoint.saver(folder_at(options.url), state)(1)
    views, key = checkpoint.local_bytes(state), place.removeprefix("s3://bench/")
    shard, plain = open_checkpoint(folder_at(place)).shards[rank], open_store("s3://bench")._store

    target = memoryview(bytearray(shard.size_bytes))

    def fetch(begin: int) -> None:
        length = min(PART_BYTES, shard.size_bytes - begin)
        target[begin : begin + length] = memoryview(obstore.get_range(plain, f"{key}/{shard.file}", start=begin, length=length))

    def download() -> None:
        with ThreadPoolExecutor(folder_at(place).reads_at_once) as network:
            list(network.map(fetch, range(0, shard.size_bytes, PART_BYTES)))

    times: dict[str, list[float]] = {"ours_s": [], "plain_s": []}
    for _ in range(options.runs + 1):
        times["ours_s"].append(checkpoint.timed(lambda: load_state(open_checkpoint(folder_at(place)), state)))
        times["plain_s"].append(checkpoint.timed(download))
    return {"gb": checkpoint.RANKS * sum(map(len, views)) / 1e9, **{name: found[1:] for name, found in times.items()}}
