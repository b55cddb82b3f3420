"""Nodes that join: a one-use token of the admin's is exchanged for a node credential. The database holds SHA-256 of both, no more.

The agent makes its credential itself and sends the hash. Whoever repeats an exchange has to know both secrets already, so a
repeat after a lost answer gives nobody anything new, and it is the same exchange.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, insert, select, update

from phalanx.core.errors import Conflict, NotFound, Unauthorized
from phalanx.core.ids import NodeId
from phalanx.operate.control import auth, tables
from phalanx.operate.control.people import audit
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.store import Store

TOKEN_BYTES: Final = 32
KEPT_MS: Final = 30 * 86_400_000
"""How long a token that is over is remembered, so that whoever comes with it hears why."""

_NEW: Final = "make a new one with `phalanx agent token` where the control plane runs"
_FIELD: Final = "join token"
_HELD: Final = tables.node_credentials.c


def make_token(store: Store, epoch: int, lifetime_ms: int, now_ms: int, note: Note | None = None) -> tuple[str, int]:
    """A new join token and when it expires. Raises StoreUnavailable."""
    token, expires_ms = secrets.token_urlsafe(TOKEN_BYTES), now_ms + lifetime_ms
    with store.leading(epoch) as connection:
        connection.execute(delete(tables.join_tokens).where(tables.join_tokens.c.expires_ms < now_ms - KEPT_MS))
        row = {"sha256": auth.digest(token), "created_ms": now_ms, "expires_ms": expires_ms, "used_by": None}
        connection.execute(insert(tables.join_tokens).values(row))
        audit.write(connection, note)
    return token, expires_ms


def check_known(store: Store, token: str) -> None:
    """Raises Unauthorized for a token that nobody made, StoreUnavailable."""
    with store.reading() as connection:
        _token(connection, auth.digest(token))


def exchange(
    store: Store, epoch: int, token: str, credential_sha256: str, node: NodeId, now_ms: int, note: Note | None = None
) -> None:
    """From now on that credential opens the door to `node`. The same exchange again changes nothing, whenever it comes.

    Raises Unauthorized for an unknown or expired token, Conflict for one that was used otherwise and for a name or credential
    that is held already, StoreUnavailable.
    """
    sha256 = auth.digest(token)
    with store.leading(epoch) as connection:
        row = _token(connection, sha256)
        holder = connection.execute(select(_HELD.sha256).where(_HELD.node == node)).scalar()
        if row.used_by == node and holder == credential_sha256:
            return
        if row.used_by is not None:
            raise Conflict(_FIELD, "(used already)", f"it let {row.used_by} join, and is good for one node; {_NEW}")
        if row.expires_ms <= now_ms:
            raise Unauthorized(_FIELD, "(expired)", _NEW)
        if holder is not None:
            fix = "another node joined by this name; choose one with --name, or free it with `phalanx agent revoke`"
            raise Conflict("node", node, fix)
        if connection.execute(select(_HELD.node).where(_HELD.sha256 == credential_sha256)).scalar() is not None:
            raise Conflict("credential", "(known already)", "it belongs to another node; make a new one")
        connection.execute(update(tables.join_tokens).where(tables.join_tokens.c.sha256 == sha256).values(used_by=node))
        joined = {"sha256": credential_sha256, "node": node, "created_ms": now_ms}
        connection.execute(insert(tables.node_credentials).values(joined))
        audit.write(connection, note)


def credentials(store: Store) -> Mapping[str, NodeId]:
    """SHA-256 of each node credential to the node that it stands for. Raises StoreUnavailable."""
    with store.reading() as connection:
        rows = connection.execute(select(tables.node_credentials)).all()
    return {row.sha256: NodeId(row.node) for row in rows}


def revoke(store: Store, epoch: int, node: NodeId, note: Note | None = None) -> None:
    """The node's credential opens nothing any more. Raises NotFound, StoreUnavailable."""
    with store.leading(epoch) as connection:
        gone = connection.execute(delete(tables.node_credentials).where(tables.node_credentials.c.node == node)).rowcount
        if gone:
            audit.write(connection, note)
    if not gone:
        raise NotFound("node", node, "no node joined by that name; `phalanx node ls` shows them all")


def _token(connection: Connection, sha256: str) -> Row[Any]:
    row = connection.execute(select(tables.join_tokens).where(tables.join_tokens.c.sha256 == sha256)).first()
    if row is None:
        raise Unauthorized(_FIELD, "(unknown)", _NEW)
    return row
