"""The home: the folder that holds all of one platform. Opening checks that it can be used, and by this version."""

import contextlib
import json
import os
import re
import socket
from pathlib import Path
from typing import Final

from phalanx.core.errors import SetupError
from phalanx.core.ids import NAME, NodeId
from phalanx.core.isolation import MODES, Mode
from phalanx.storage.atomic import make_folders, write_atomic

FORMAT: Final = 1
"""Grows when an older Phalanx could damage the home."""

_PRIVATE: Final = ("phalanx.db*", "mlflow.db*", "home.json", "database.json", "tracking-id", "run/*.log*")
"""Files that a Phalanx before this one, or a user's umask, left readable for others."""

_FOLDERS: Final = ("run", "node", "jobs", "journal", "series", "blobs")


def open_home(home: Path) -> None:
    """Makes what is missing. Raises SetupError for a home that cannot be written or that a newer Phalanx made."""
    try:
        make_folders(home, 0o700)
        _make_private(home)
        _check_format(home)
        for name in _FOLDERS:
            make_folders(home / name, 0o700)
            (home / name / ".probe").touch()
            (home / name / ".probe").unlink()
    except OSError as error:
        fix = f"cannot be used ({error.strerror}: {error.filename}); make it a writable folder, or choose another PHALANX_HOME"
        raise SetupError("home", str(home), fix) from error


def _make_private(home: Path) -> None:
    """Takes it from other users when it is ours: a Phalanx's home, or empty. Any other folder's mode is not ours to change."""
    is_home = (home / "home.json").exists() or next(home.iterdir(), None) is None
    for path in (home, *(found for pattern in _PRIVATE for found in home.glob(pattern))) if is_home else ():
        with contextlib.suppress(FileNotFoundError):  # SQLite removes its files beside the database as it closes
            known = path.stat()
            if known.st_uid == os.geteuid() and known.st_mode & 0o077:
                path.chmod(known.st_mode & 0o700)


def node_name(home: Path) -> NodeId:
    """This machine's name in the fleet: of its host at first, and the same ever after, since attempts are held by it."""
    file = home / "node" / "name"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = file.read_text(encoding="ascii").strip()
        if NAME.fullmatch(known):
            return NodeId(known)
    label = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().partition(".")[0].lower())[:63].strip("-")
    write_atomic(file, f"{label or 'node'}\n".encode())
    return NodeId(label or "node")


def isolation_of(home: Path) -> Mode:
    """How this home's agent keeps jobs apart. Kept in the home: an agent that is started again must not forget it. Raises
    SetupError for a file that cannot be understood."""
    file = home / "node" / "isolation"
    try:
        text = file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return "none"
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError("isolation", str(file), "cannot be read; write none or uid into it") from error
    found = next((mode for mode in MODES if mode == text), None)
    if found is None:
        raise SetupError("isolation", text, f"write none or uid into {file}")
    return found


def set_isolation(home: Path, mode: Mode) -> None:
    """From the agent's next start on. Raises StoreUnavailable, SetupError."""
    write_atomic(home / "node" / "isolation", f"{mode}\n".encode(), 0o600)


def _check_format(home: Path) -> None:
    file = home / "home.json"
    try:
        known = json.loads(file.read_text(encoding="utf-8"))["format"]
    except FileNotFoundError:
        write_atomic(file, json.dumps({"format": FORMAT}).encode() + b"\n", 0o600)
        return
    except (ValueError, KeyError, TypeError) as error:
        raise SetupError("home", str(home), 'has a damaged home.json; write {"format": 1} into it if a Phalanx made it') from error
    if not isinstance(known, int) or known > FORMAT:
        raise SetupError(
            "home", str(home), f"has format {known}, this Phalanx knows up to {FORMAT}: upgrade Phalanx, or use another home"
        )
