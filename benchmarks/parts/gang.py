"""A gang of ranks on this machine: a benchmark's own file once for each, with torchrun's environment."""

import json
import os
import secrets
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ANSWER = "answer.json"
_PORTS = range(3_000, 9_000)
"""None of these does Linux give to an outgoing connection, which could take one before a rank listens there."""


def answer_of_ranks(words: Sequence[str], ranks: int, folder: Path, what: str = "ranks", **env: str) -> Any:
    """What rank 0 has written into `folder`/ANSWER once all have ended. words: of each one's command. env: beside torchrun's. what:
    said of those that failed, which end the benchmark."""
    port, started = str(free_port()), []
    for rank in range(ranks):
        torchrun = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        own = {**torchrun, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(list(words), env={**os.environ, **own, **env}))
    codes = [rank.wait() for rank in started]
    if any(codes):
        raise SystemExit(f"{what} ended with {codes}")
    return json.loads((folder / ANSWER).read_text())


def free_port() -> int:
    """One that nobody listens at now."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
