"""A job's notebook server: its token, which only this node's files know, and where it listens."""

import json
import secrets
from pathlib import Path
from typing import Final

from phalanx.core.channels import NotebookPlace
from phalanx.storage.atomic import write_atomic

TOKEN_FILE: Final = "notebook-token"  # noqa: S105 - a name
LAUNCHER: Final = str(Path(__file__).with_name("notebook_launcher.py"))
"""Run by the job's own Python, which need not have our package."""


def write_token(path: Path) -> None:
    """A new one, for this user alone; the one that is there stays."""
    if not path.exists():
        write_atomic(path, secrets.token_hex(32).encode(), mode=0o600)


def place(folder: Path, port: int) -> NotebookPlace | None:
    """None until the server has been told where to listen."""
    try:
        path = json.loads((folder / f"{TOKEN_FILE}.json").read_bytes())["path"]
        return NotebookPlace(port, (folder / TOKEN_FILE).read_text(), str(path))
    except (OSError, ValueError, KeyError, TypeError):
        return None
