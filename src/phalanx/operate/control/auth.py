"""Who may ask: 256-bit tokens, stored as SHA-256 only. A token is looked up by its hash, so no comparison leaks its bytes."""

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from phalanx.core.errors import SetupError, Unauthorized
from phalanx.storage.atomic import write_atomic

if TYPE_CHECKING:
    from phalanx.operate.control.store import Store  # the agent's process reads its token without a database

Role = Literal["admin", "node"]
FILES: Final[Mapping[Role, str]] = {"admin": "token", "node": "node-token"}
"""Role to the file in the home that holds its token, readable by its owner alone."""

_BYTES: Final = 32
_MODE: Final = 0o600


class Tokens:
    """The hashes that open a door, in memory: hash to role."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self._roles = dict(roles)

    def role(self, authorization: str | None) -> Role:
        """Who sent this Authorization header. Raises Unauthorized."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized("Authorization", "(missing)", "send 'Authorization: Bearer TOKEN'; it is in $PHALANX_HOME/token")
        role = self._roles.get(digest(token.strip()))
        if role is None:
            raise Unauthorized("Authorization", "(an unknown token)", "read the token again from $PHALANX_HOME/token")
        return role


def digest(token: str) -> str:
    """What the database knows of a token. Unsalted: 256 random bits leave nothing to guess."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_of(home: Path, role: Role) -> str:
    """The token of `role` in this home, made on first start. Raises SetupError when the file cannot be used.

    Deleting the file and starting again makes a new one, and the old one opens nothing any more.
    """
    path = home / FILES[role]
    try:
        token = path.read_text(encoding="ascii").strip()
        if path.stat().st_mode & 0o077:
            path.chmod(_MODE)
    except FileNotFoundError:
        return _made(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError("token file", str(path), f"cannot be read ({error}); delete it to get a new one") from error
    if len(token) < _BYTES:
        raise SetupError("token file", str(path), "holds no token; delete it to get a new one")
    return token


def _made(path: Path) -> str:
    """A new token in a file that never exists half-written or readable by others."""
    token = secrets.token_urlsafe(_BYTES)
    write_atomic(path, f"{token}\n".encode(), _MODE)
    return token


def open_tokens(home: Path, store: "Store", now_ms: int) -> Tokens:
    """The tokens of this home, made on first start and known to the store. Raises SetupError, StoreUnavailable."""
    roles: dict[str, Role] = {digest(token_of(home, role)): role for role in FILES}
    store.set_tokens(roles, now_ms)
    return Tokens(roles)
