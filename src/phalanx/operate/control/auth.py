"""Who may ask: 256-bit tokens. The database decides, and knows only their SHA-256; the files in the home are the users' copies.

A token is looked up by its hash, so no comparison leaks its bytes.
"""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeGuard

from phalanx.core.errors import SetupError, Unauthorized
from phalanx.core.ids import NodeId
from phalanx.storage.atomic import write_atomic

if TYPE_CHECKING:
    from phalanx.operate.control.store import Store  # the agent's process reads its token without a database

Role = Literal["admin", "node"]
CallerRole = Literal["admin", "node", "user"]
FILES: Final[Mapping[Role, str]] = {"admin": "token", "node": "node-token"}
"""Role to the file in the home that holds its token, readable by its owner alone."""

_BYTES: Final = 32
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `node`: the only one that a node credential may speak for; None for the admin, for people, and for the home's own
    agent."""

    role: CallerRole
    node: NodeId | None = None


class Tokens:
    """The hashes that open a door, in memory: of tokens to their role, and of node credentials to their node.

    Routes ask on threads of their own while one admits or dismisses, so a mapping is replaced and never changed.
    """

    def __init__(self, roles: Mapping[str, Role], credentials: Mapping[str, NodeId] = MappingProxyType({})) -> None:
        self._roles = dict(roles)
        self._credentials = dict(credentials)

    def caller(self, authorization: str | None) -> Caller:
        """Who sent this Authorization header. Raises Unauthorized."""
        found = self.find(digest(bearer(authorization)))
        if found is not None:
            return found
        raise Unauthorized("Authorization", "(an unknown token)", "read the token again from $PHALANX_HOME/token")

    def find(self, sha256: str) -> Caller | None:
        """Who has the token of that hash, of the home's own and of nodes."""
        if sha256 in self._roles:
            return Caller(self._roles[sha256])
        node = self._credentials.get(sha256)
        return None if node is None else Caller("node", node)

    def role(self, authorization: str | None) -> CallerRole:
        """The role of who sent this Authorization header. Raises Unauthorized."""
        return self.caller(authorization).role

    def check_name(self, caller: Caller, node: NodeId) -> None:
        """Raises Unauthorized unless an agent of this caller may call itself `node`: by a credential its own name alone, by the
        home's node token any name that no credential holds."""
        if caller.node is not None and (caller.node != node or not self.holds(node)):
            raise Unauthorized(
                "node", node, f"this credential is {caller.node}'s; join again with a token of `phalanx agent token`"
            )
        if caller.node is None and self.holds(node):
            raise Unauthorized("node", node, "a node that joined holds this name, and its credential alone may use it")

    def holds(self, node: NodeId) -> bool:
        """Whether a credential stands for that name."""
        return node in self._credentials.values()

    def admit(self, credential_sha256: str, node: NodeId) -> None:
        """The database has this credential now."""
        self._credentials = {**self._credentials, credential_sha256: node}

    def dismiss(self, node: NodeId) -> None:
        """The database has no credential of that node any more."""
        self._credentials = {sha256: name for sha256, name in self._credentials.items() if name != node}


def bearer(authorization: str | None) -> str:
    """The token in an Authorization header. Raises Unauthorized when there is none."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("Authorization", "(missing)", "send 'Authorization: Bearer TOKEN'; it is in $PHALANX_HOME/token")
    return token.strip()


def digest(token: str) -> str:
    """What the database knows of a token. Unsalted: 256 random bits leave nothing to guess."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_of(home: Path, role: Role) -> str:
    """The token of `role`, as this home's file has it. Raises SetupError when there is none."""
    token = _read(home / FILES[role])
    if token is None:
        raise SetupError("token file", str(home / FILES[role]), "is missing; the server makes a new one when it starts")
    return token


def open_tokens(
    home: Path, store: "Store", epoch: int, now_ms: int, credentials: Mapping[str, NodeId] = MappingProxyType({})
) -> Tokens:
    """The tokens that the database lets in, made at the first start, and `credentials`. Raises SetupError, StoreUnavailable, and
    Bug for a leader that was superseded, which changes none.

    Deleting a file and starting again makes a new token, and the old one opens nothing any more. A file with a token that the
    database does not know is refused: whoever can write a file does not let themselves in, and nobody wonders about a 401.
    """
    known = store.tokens()
    copies = {role: _read(home / name) for role, name in FILES.items()}
    for role, token in copies.items():
        if token is not None and known and known.get(digest(token)) != role:
            fix = "does not hold the token that the database knows; restore the file, or delete it and start again to get a new one"
            raise SetupError("token file", str(home / FILES[role]), fix)
    tokens = {role: token or secrets.token_urlsafe(_BYTES) for role, token in copies.items()}
    store.set_tokens(epoch, {digest(token): role for role, token in tokens.items()}, now_ms)
    for role, token in tokens.items():
        if copies[role] is None:  # after the database: a crash between the two leaves no file, so the next start makes another
            write_atomic(home / FILES[role], f"{token}\n".encode(), _MODE)
    return Tokens({sha256: role for sha256, role in store.tokens().items() if _is_role(role)}, credentials)


def _is_role(text: str) -> TypeGuard[Role]:
    return text in FILES


def _read(path: Path) -> str | None:
    """The token in a file, made private again; None when there is no file. Raises SetupError for one that cannot be used."""
    try:
        token = path.read_text(encoding="ascii").strip()
        if path.stat().st_mode & 0o077:
            path.chmod(_MODE)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError("token file", str(path), f"cannot be read ({error}); delete it to get a new one") from error
    if len(token) < _BYTES:
        raise SetupError("token file", str(path), "holds no token; delete it to get a new one")
    return token
