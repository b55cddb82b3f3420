"""The real command line as a process of its own, with stand-ins for what app.py would inject."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.core.errors import Conflict, DataError, SetupError
from phalanx.show.cli.main import run
from phalanx.show.cli.tools import ProgressSink, Tools


def up(home: Path, port: int, cpu_slots: int | None, store: str = "") -> bool:
    return cpu_slots != 1


def down(home: Path, force: bool) -> bool:
    if not force:
        raise Conflict("home", str(home), "1 job holds devices; wait for it, or add --force")
    return True


def prepare_data(paths: Sequence[Path], out: Path, vocab_size: int, force: bool, progress: ProgressSink) -> Mapping[str, Any]:
    progress("reading", 1, 2)
    progress("reading", 2, 2)
    progress("tokenizing", 0, 0)
    return {"path": str(out), "vocab_size": vocab_size, "splits": {"train": {"tokens": 900}}, "sources": [{"path": str(paths[0])}]}


def show_data(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        raise DataError("data", str(path), "is not a folder made by `phalanx data prepare`")
    return {"path": str(path), "taste": "one\ntwo\x1b[31m"}


def sample_model(path: Path, digest: str, prompt: str, tokens: int, seed: int, temperature: float) -> int:
    os.write(1, f"{prompt}{path} {digest[:4]} {tokens} {seed} {temperature}\x1b[2J\n".encode())
    return 0


def pack_workdir(folder: Path) -> bytes:
    return b"packed " + folder.name.encode()


def join(home: Path, url: str, token_file: Path | None, name: str) -> str:
    if token_file is None:
        raise SetupError("--token-file", None, "this home has not joined yet")
    return name or "this-machine"


def serve_node(home: Path, cpu_slots: int | None) -> int:
    return cpu_slots or 0


TOOLS = Tools(
    up=up, down=down, prepare_data=prepare_data, show_data=show_data, sample_model=sample_model, pack_workdir=pack_workdir,
    join=join, serve_node=serve_node,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(run(TOOLS))
