"""Joining: one token lets one node in, the database knows hashes alone, and a repeat is the same exchange."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from phalanx.core.errors import Bug, Conflict, NotFound, Unauthorized
from phalanx.core.ids import NodeId
from phalanx.operate.control import joining, tables
from phalanx.operate.control.auth import Caller, Tokens, digest
from phalanx.operate.control.store import Store

pytestmark = pytest.mark.both_databases

A, B = NodeId("rack-a"), NodeId("rack-b")
MINE, OTHER = digest("my own credential"), digest("another credential")
NEW = "phalanx agent token"


@pytest.fixture
def store(database: Path | str) -> Iterator[Store]:
    opened = Store(database)
    opened.take_lead()
    yield opened
    opened.close()


def made(store: Store, lifetime_ms: int = 1_000, now_ms: int = 0) -> str:
    return joining.make_token(store, 1, lifetime_ms, now_ms)[0]


def test_a_token_has_256_bits_expires_and_is_kept_as_a_hash(store: Store, tmp_path: Path) -> None:
    token, expires_ms = joining.make_token(store, 1, 60_000, 5)
    assert (len(token) >= 43, expires_ms) == (True, 60_005)
    joining.check_known(store, token)
    joining.exchange(store, 1, token, MINE, A, 10)
    assert joining.credentials(store) == {MINE: A}
    assert all(token.encode() not in path.read_bytes() for path in tmp_path.glob("*/phalanx.db*"))


def test_an_unknown_token_is_unauthorized(store: Store) -> None:
    with pytest.raises(Unauthorized, match=NEW):
        joining.check_known(store, "made up")
    with pytest.raises(Unauthorized, match=NEW):
        joining.exchange(store, 1, "made up", MINE, A, 0)
    assert joining.credentials(store) == {}


def test_a_token_expires_to_the_millisecond(store: Store) -> None:
    late, early = made(store), made(store)
    with pytest.raises(Unauthorized, match=f"expired.*{NEW}"):
        joining.exchange(store, 1, late, MINE, A, 1_000)
    joining.exchange(store, 1, early, MINE, A, 999)


def test_a_token_is_good_for_one_node(store: Store) -> None:
    token = made(store)
    joining.exchange(store, 1, token, MINE, A, 0)
    for credential, node in ((OTHER, B), (OTHER, A), (MINE, B)):
        with pytest.raises(Conflict, match=f"used already.*{NEW}"):
            joining.exchange(store, 1, token, credential, node, 0)
    assert joining.credentials(store) == {MINE: A}


def test_the_same_exchange_again_is_the_same_exchange_even_after_the_token_expired(store: Store) -> None:
    token = made(store)
    for now_ms in (0, 1, 10_000_000):
        joining.exchange(store, 1, token, MINE, A, now_ms)
    assert joining.credentials(store) == {MINE: A}


def test_a_name_or_credential_that_is_held_is_a_conflict_and_uses_up_no_token(store: Store) -> None:
    joining.exchange(store, 1, made(store), MINE, A, 0)
    token = made(store)
    with pytest.raises(Conflict, match="--name"):
        joining.exchange(store, 1, token, OTHER, A, 0)
    with pytest.raises(Conflict, match="another node"):
        joining.exchange(store, 1, token, MINE, B, 0)
    joining.exchange(store, 1, token, OTHER, B, 0)
    assert joining.credentials(store) == {MINE: A, OTHER: B}


def test_a_revoked_node_is_out_and_joins_anew(store: Store) -> None:
    first = made(store)
    joining.exchange(store, 1, first, MINE, A, 0)
    joining.revoke(store, 1, A)
    assert joining.credentials(store) == {}
    with pytest.raises(NotFound):
        joining.revoke(store, 1, A)
    with pytest.raises(Conflict, match="used already"):  # else a stolen credential would let itself in again
        joining.exchange(store, 1, first, MINE, A, 0)
    joining.exchange(store, 1, made(store), OTHER, A, 0)
    assert joining.credentials(store) == {OTHER: A}


def test_tokens_long_over_are_forgotten(store: Store) -> None:
    old = made(store)
    made(store, now_ms=joining.KEPT_MS)
    joining.check_known(store, old)
    made(store, now_ms=joining.KEPT_MS + 1_001)
    with store.reading() as connection:
        assert len(connection.execute(select(tables.join_tokens)).all()) == 2
    with pytest.raises(Unauthorized):
        joining.check_known(store, old)


def test_a_superseded_control_plane_lets_nobody_in(store: Store) -> None:
    token = made(store)
    store.take_lead()
    with pytest.raises(Bug, match="superseded"):
        joining.exchange(store, 1, token, MINE, A, 0)
    assert joining.credentials(store) == {}


def test_a_credential_speaks_for_its_own_node_alone() -> None:
    tokens = Tokens({digest("admin"): "admin", digest("home"): "node"}, {digest("a"): A})
    own, homes = tokens.caller("Bearer a"), tokens.caller("Bearer home")
    assert (own, homes) == (Caller("node", A), Caller("node", None))
    tokens.check_name(own, A)
    tokens.check_name(homes, B)
    for caller, node in ((own, B), (homes, A)):
        with pytest.raises(Unauthorized, match="node"):
            tokens.check_name(caller, node)
    tokens.admit(digest("b"), B)
    with pytest.raises(Unauthorized):
        tokens.check_name(homes, B)
    tokens.dismiss(A)
    with pytest.raises(Unauthorized):
        tokens.caller("Bearer a")
    with pytest.raises(Unauthorized):  # it was let in before, and says its name only now
        tokens.check_name(own, A)
