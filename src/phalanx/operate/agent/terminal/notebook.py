"""A job's notebook server: its token, which only this node's files know, and where it listens."""

import json
import re
import secrets
from pathlib import Path
from typing import Final

from phalanx.core.channels import NotebookPlace
from phalanx.operate.agent.told import read_told
from phalanx.storage.atomic import write_atomic

TOKEN_FILE: Final = "notebook-token"  # noqa: S105 - a name
FOLDER: Final = "notebook"
"""In the attempt's: the server's own, with what it says of itself."""
LAUNCHER: Final = str(Path(__file__).with_name("notebook_launcher.py"))
"""Run by the job's own Python, which need not have our package."""
_TOKEN: Final = re.compile(r"[0-9a-f]{64}")
_PATH: Final = re.compile(r"/[a-z]*")


def prepare(folder: Path) -> None:
    """In the attempt's folder: a new token, for this user alone; the one that is there stays. And the server's own folder."""
    (folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
    if not (folder / TOKEN_FILE).exists():
        write_atomic(folder / TOKEN_FILE, secrets.token_hex(32).encode(), mode=0o600)


def place(folder: Path, port: int) -> NotebookPlace | None:
    """None until the server has been told where to listen. All is the job's to write, so that nothing else is taken for it."""
    inside = folder / FOLDER
    said = (inside if inside.is_dir() else folder) / f"{TOKEN_FILE}.json"  # an older agent's attempts have it beside the token
    try:
        path, token = str(json.loads(read_told(said))["path"]), read_told(folder / TOKEN_FILE).decode("ascii")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return NotebookPlace(port, token, path) if _TOKEN.fullmatch(token) and _PATH.fullmatch(path) else None
