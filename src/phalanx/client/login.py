"""A token of a platform elsewhere, kept in a home so that every command finds it."""

import json
import os
import secrets
from pathlib import Path
from typing import Final

from phalanx.core.errors import Conflict, SetupError

LOGIN_FILE: Final = "login.json"
_MODE: Final = 0o600


def keep_login(home: Path, url: str, token: str) -> Path:
    """The file that holds them, for its owner alone, in place of an older one. Raises Conflict in a home that has a platform of its
    own, SetupError."""
    if (home / "token").exists() or (home / "run" / "server.json").exists():
        fix = "has a platform of its own, which its commands mean; log in with another --home"
        raise Conflict("home", str(home), fix)
    file, beside = home / LOGIN_FILE, home / f".{LOGIN_FILE}.{secrets.token_hex(4)}"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(
            os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE), "w", encoding="utf-8"
        ) as opened:
            json.dump({"url": url, "token": token}, opened)
        beside.replace(file)
    except OSError as error:
        raise SetupError("home", str(home), f"cannot keep the login ({error.strerror}); choose another --home") from error
    return file


def kept_login(home: Path) -> tuple[str, str] | None:
    """(url, token) of the login kept there; None without one. Raises SetupError for one that cannot be used."""
    file = home / LOGIN_FILE
    try:
        mode = file.stat().st_mode
        data = json.loads(file.read_text(encoding="utf-8"))
        found = str(data["url"]), str(data["token"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError("login", str(file), "cannot be read; `phalanx login URL` again") from error
    if mode & 0o077:
        raise SetupError("login", str(file), "may be read by others of this machine; `chmod 600` it, and make a new token")
    return found


def forget_login(home: Path) -> bool:
    """Whether there was one. The token stays good until it is revoked. Raises SetupError."""
    try:
        (home / LOGIN_FILE).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SetupError("login", str(home / LOGIN_FILE), f"cannot be removed ({error.strerror})") from error
    return True
