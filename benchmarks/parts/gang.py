"""A gang of ranks on this machine: a benchmark's own file once for each, with torchrun's environment."""

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ANSWER = "answer.json"


def answer_of_ranks(words: Sequence[str], ranks: int, folder: Path, what: str = "ranks", **env: str) -> Any:
    """What rank 0 has written into `folder`/ANSWER once all have ended. words: of each one's command. env: beside torchrun's. what:
    said of those that failed, which end the benchmark."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    started = []
    for rank in range(ranks):
        torchrun = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        own = {**torchrun, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(list(words), env={**os.environ, **own, **env}))
    codes = [rank.wait() for rank in started]
    if any(codes):
        raise SystemExit(f"{what} ended with {codes}")
    return json.loads((folder / ANSWER).read_text())
