"""How this home's node belongs to a control plane: by a credential that it made itself, let in once by a join token.

The credential is written down before it is sent, so an answer that was lost is asked for again with the same one, by the next
process too. What was asked for lies beside the membership that the home has, which a refusal therefore leaves as it was. Who
speaks to the control plane comes in as `Door`.
"""

import hashlib
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from phalanx.core import wire
from phalanx.core.errors import SetupError, SpecError, Unauthorized, WorldError
from phalanx.core.ids import NAME, NodeId
from phalanx.operate.home import node_name
from phalanx.storage.atomic import write_atomic

CREDENTIAL_BYTES: Final = 32
TOKEN_CHARS_MAX: Final = 1000
_NEW: Final = "make one with `phalanx agent token` where the control plane runs, and give its file as --token-file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """node/credential.json, or what node/joining.json asks for: both for their owner alone."""

    url: str
    node: str
    credential: str

    @property
    def urls(self) -> tuple[str, ...]:
        """Where the control plane is, or its standby: with commas between them in `url`."""
        return tuple(self.url.split(","))

    def __repr__(self) -> str:
        return f"Membership({self.url!r}, {self.node!r}, credential hidden)"


class Door(Protocol):
    """The control plane, as one who is not in yet sees it. Both raise ServerUnreachable, and UserError when refused."""

    def exchange(self, token: str, node: str, credential_sha256: str) -> None:
        """Lets that credential stand for `node`; twice is once."""

    def check(self, credential: str) -> None:
        """Raises Unauthorized when the credential opens nothing."""


def enter(home: Path, url: str, token_file: Path | None, name: str, door: Door) -> Membership:
    """This home's membership at `url`: the one it has, else a new one for the token in `token_file`, which is read only then.

    A control plane that is away is believed to know its members. Raises SetupError, SpecError, Unauthorized, Conflict, and
    ServerUnreachable while the exchange has not been made. One at a time for one home.
    """
    known = read(home)
    if known is not None:
        _refuse_another_name(known, name)
        if {*known.urls} & {*url.split(",")} and _still_in(known, door, token_file is None):
            return _listed(home, known, url)
        if token_file is None:
            raise SetupError("URL", url, f"this home joined {known.url}; give that address, or a --token-file of this one")
    token = _token(token_file)
    asked = _asked(home, url, name, known)
    _write(_asked_file(home), asked)
    door.exchange(token, asked.node, hashlib.sha256(asked.credential.encode()).hexdigest())
    write_atomic(home / "node" / "name", f"{asked.node}\n".encode())
    _write(_file(home), asked)
    _asked_file(home).unlink()
    return asked


def refuse_own(home: Path) -> None:
    """Raises SetupError for the home of a control plane, which has an agent already."""
    if (home / "phalanx.db").exists() or (home / "database.json").exists():
        raise SetupError("home", str(home), "holds a control plane, whose agent `phalanx up` starts; choose another with --home")


def read(home: Path) -> Membership | None:
    """The membership of this home; None when it has joined nothing. Raises SetupError."""
    return _read(_file(home))


def _read(file: Path) -> Membership | None:
    try:
        found: Membership = wire.loads(Membership, file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise SetupError("credential file", str(file), f"cannot be read ({error}); delete it and join again") from error
    return found


def _listed(home: Path, known: Membership, url: str) -> Membership:
    """Other addresses of the same control plane are written down."""
    if known.url == url:
        return known
    now = replace(known, url=url)
    _write(_file(home), now)
    return now


def _refuse_another_name(known: Membership, name: str) -> None:
    """A node's attempts are held by its name."""
    if name not in ("", known.node):
        raise SetupError("--name", name, f"this home joined as {known.node}; leave --name out, or choose another --home")


def _still_in(known: Membership, door: Door, last_chance: bool) -> bool:
    try:
        door.check(known.credential)
    except WorldError:
        return True
    except Unauthorized as error:
        if last_chance:
            raise Unauthorized("node credential", "(unknown)", f"{known.url} does not know it, or not any more: {_NEW}") from error
        return False
    return True


def _asked(home: Path, url: str, name: str, known: Membership | None) -> Membership:
    """What to ask for: the same as last time where that got no answer, else something new."""
    before = _read(_asked_file(home))
    last = known or before
    node = NodeId(name) if name else NodeId(last.node) if last else node_name(home)
    if NAME.fullmatch(node) is None:
        raise SpecError("--name", node, "use 1 to 63 lower-case letters, digits and dashes, with a letter or digit at both ends")
    if before is not None and before != known and (before.url, before.node) == (url, node):  # a known one may have been revoked
        return before
    return Membership(url=url, node=node, credential=secrets.token_urlsafe(CREDENTIAL_BYTES))


def _token(file: Path | None) -> str:
    if file is None:
        raise SetupError("--token-file", None, f"this home has not joined yet, which takes a token: {_NEW}")
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError("--token-file", str(file), f"cannot be read ({error}); {_NEW}") from error
    if not token or len(token) > TOKEN_CHARS_MAX or not token.isprintable() or " " in token:
        raise SetupError("--token-file", str(file), f"holds no join token; {_NEW}")
    return token


def _write(file: Path, membership: Membership) -> None:
    write_atomic(file, wire.dumps(Membership, membership).encode(), 0o600)


def _file(home: Path) -> Path:
    return home / "node" / "credential.json"


def _asked_file(home: Path) -> Path:
    return home / "node" / "joining.json"
