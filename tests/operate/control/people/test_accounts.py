"""Accounts: who there is and what their tokens open, each change with its row of the audit log, or none of the two."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.errors import Bug, Conflict, Forbidden, NotFound, SpecError, Unauthorized
from phalanx.core.people import BUILT_IN, DAY_MS, LIFETIME_MS_MAX, Person, TokenRequest
from phalanx.operate.control.auth import digest
from phalanx.operate.control.people import audit
from phalanx.operate.control.people.accounts import Accounts
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.store import Store
from tests.operate.control.control_bench import ManualClock

NOTE = Note(at_ms=5, who="admin", token="admin", what="x.y", target="t", address="127.0.0.1")
ASKED = TokenRequest(name="laptop", user="ada", scope="admin")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "phalanx.db")
    opened.take_lead()
    yield opened
    opened.close()


@pytest.fixture
def accounts(store: Store, clock: ManualClock) -> Accounts:
    """ada is a member of red and a viewer of blue, bob rules."""
    made = Accounts(store, clock.now_ms)
    made.add_user(1, "ada", False, NOTE)
    made.add_user(1, "bob", True, NOTE)
    for team in ("red", "blue"):
        made.add_team(1, team, NOTE)
    made.set_role(1, "red", "ada", "member", NOTE)
    made.set_role(1, "blue", "ada", "viewer", NOTE)
    return made


def person(accounts: Accounts, clock: ManualClock, asked: TokenRequest) -> Person:
    made = accounts.make_token(1, asked, NOTE)
    return accounts.directory().person(digest(made.token), clock.now_ms())


def test_a_token_has_256_bits_is_told_once_and_kept_as_a_hash(accounts: Accounts, clock: ManualClock, tmp_path: Path) -> None:
    made = accounts.make_token(1, ASKED, NOTE)
    assert made.token.startswith("phx_") and len(made.token) >= 47
    assert (made.view.name, made.view.user, made.view.expires_ms) == ("laptop", "ada", clock.now_ms() + 30 * DAY_MS)
    assert all(made.token.encode() not in path.read_bytes() for path in tmp_path.glob("phalanx.db*"))
    assert made.token not in repr(accounts.directory())


def test_a_token_reaches_as_far_as_its_owner_and_its_scope(accounts: Accounts, clock: ManualClock) -> None:
    assert person(accounts, clock, ASKED).roles == {"red": "member", "blue": "viewer"}
    assert person(accounts, clock, replace(ASKED, scope="read")).roles == {"red": "viewer", "blue": "viewer"}
    assert person(accounts, clock, replace(ASKED, team="red")).roles == {"red": "member"}
    for scope, role in (("read", "viewer"), ("submit", "member"), ("admin", "admin")):
        ruler = person(accounts, clock, TokenRequest(name="x", user="bob", scope=scope))  # type: ignore[arg-type]
        assert (ruler.everywhere, ruler.rules) == (role, scope == "admin")
    of_team = person(accounts, clock, TokenRequest(name="x", user="bob", scope="submit", team="blue"))
    assert (of_team.roles, of_team.everywhere, of_team.role("red"), of_team.role("")) == ({"blue": "member"}, None, None, None)


def test_a_token_follows_what_becomes_of_its_owner(accounts: Accounts, clock: ManualClock) -> None:
    sha256 = digest(accounts.make_token(1, ASKED, NOTE).token)
    accounts.set_role(1, "red", "ada", "admin", NOTE)
    assert accounts.directory().person(sha256, clock.now_ms()).roles["red"] == "admin"
    accounts.remove_member(1, "blue", "ada", NOTE)
    assert accounts.directory().person(sha256, clock.now_ms()).roles == {"red": "admin"}
    accounts.remove_team(1, "red", NOTE)
    assert accounts.directory().person(sha256, clock.now_ms()).best is None
    accounts.set_platform(1, "ada", True, NOTE)
    assert accounts.directory().person(sha256, clock.now_ms()).rules
    accounts.remove_user(1, "ada", NOTE)
    with pytest.raises(Unauthorized, match="revoked"):
        accounts.directory().person(sha256, clock.now_ms())


def test_a_token_expires_to_the_millisecond_and_is_revoked_at_once(accounts: Accounts, clock: ManualClock) -> None:
    made = accounts.make_token(1, replace(ASKED, lifetime_ms=60_000), NOTE)
    sha256 = digest(made.token)
    clock.sleep(59_999)
    assert accounts.directory().person(sha256, clock.now_ms()).user == "ada"
    clock.sleep(1)
    with pytest.raises(Unauthorized, match="expired"):
        accounts.directory().person(sha256, clock.now_ms())
    other = accounts.make_token(1, ASKED, NOTE)
    accounts.revoke_token(1, other.view.id, BUILT_IN, NOTE)
    with pytest.raises(Unauthorized, match="revoked"):
        accounts.directory().person(digest(other.token), clock.now_ms())


def test_a_token_revokes_none_that_reaches_further_than_itself(accounts: Accounts, clock: ManualClock) -> None:
    strong = accounts.make_token(1, ASKED, NOTE).view.id
    for scope in ("read", "submit"):
        weak = person(accounts, clock, replace(ASKED, scope=scope))
        with pytest.raises(Forbidden, match="scope admin"):
            accounts.revoke_token(1, strong, weak, NOTE)
        accounts.revoke_token(1, weak.token, weak, NOTE)
    of_red = person(accounts, clock, replace(ASKED, team="red"))
    with pytest.raises(Forbidden, match="for team red"):
        accounts.revoke_token(1, strong, of_red, NOTE)
    accounts.revoke_token(1, accounts.make_token(1, replace(ASKED, team="red"), NOTE).view.id, of_red, NOTE)
    left = {one.id for one in accounts.directory().tokens.values()}
    assert left == {strong, of_red.token}


def test_nobody_revokes_anothers_token_nor_learns_of_it(accounts: Accounts, clock: ManualClock) -> None:
    accounts.add_user(1, "eve", False, NOTE)
    eve, hers = person(accounts, clock, replace(ASKED, user="eve")), accounts.make_token(1, ASKED, NOTE).view.id
    with pytest.raises(NotFound) as hidden:
        accounts.revoke_token(1, hers, eve, NOTE)
    with pytest.raises(NotFound) as unknown:
        accounts.revoke_token(1, "0" * 12, eve, NOTE)
    assert (hidden.value.field, hidden.value.fix) == (unknown.value.field, unknown.value.fix)
    accounts.revoke_token(1, hers, replace(eve, user="ada"), NOTE)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (replace(ASKED, user="admin"), SpecError),
        (replace(ASKED, user="nobody"), NotFound),
        (replace(ASKED, team="green"), NotFound),
        (replace(ASKED, name=""), SpecError),
        (replace(ASKED, name="a\x1b[2J"), SpecError),
        (replace(ASKED, lifetime_ms=LIFETIME_MS_MAX + 1), SpecError),
        (replace(ASKED, lifetime_ms=0), SpecError),
    ],
)
def test_a_token_that_cannot_be_is_refused_whole(accounts: Accounts, store: Store, asked: TokenRequest, error: type) -> None:
    before = rows(store)
    with pytest.raises(error):
        accounts.make_token(1, asked, NOTE)
    assert accounts.directory().tokens == {} and rows(store) == before


def test_a_name_is_never_given_twice(accounts: Accounts) -> None:
    for name in ("Ada", "", "a" * 64, "../x", "ada\n"):
        with pytest.raises(SpecError):
            accounts.add_user(1, name, False, NOTE)
        with pytest.raises(SpecError):
            accounts.add_team(1, name, NOTE)
    accounts.remove_user(1, "ada", NOTE)
    accounts.remove_team(1, "red", NOTE)
    again: tuple[Callable[[], None], ...] = (
        lambda: accounts.add_user(1, "ada", False, NOTE),
        lambda: accounts.add_user(1, "bob", False, NOTE),
        lambda: accounts.add_user(1, "admin", False, NOTE),
        lambda: accounts.add_team(1, "red", NOTE),
        lambda: accounts.add_team(1, "blue", NOTE),
    )
    for act in again:
        with pytest.raises(Conflict):
            act()


def rows(store: Store) -> int:
    return len(audit.page(store, {}, 0, 0, 1_000, False))


def test_every_change_has_its_row_and_a_refused_one_has_none(accounts: Accounts, store: Store) -> None:
    before = rows(store)
    assert before == 6
    accounts.set_organisation(1, "Hoplites", NOTE)
    assert (accounts.directory().organisation, rows(store)) == ("Hoplites", before + 1)
    with pytest.raises(NotFound):
        accounts.remove_user(1, "no", NOTE)
    with pytest.raises(NotFound):
        accounts.remove_member(1, "red", "bob", NOTE)
    assert rows(store) == before + 1


def test_only_the_leader_changes_accounts(accounts: Accounts, store: Store) -> None:
    store.take_lead()
    before = rows(store)
    with pytest.raises(Bug, match="superseded"):
        accounts.add_team(1, "green", NOTE)
    assert (rows(store), "green" in accounts.directory().teams) == (before, False)


def test_use_is_written_down(accounts: Accounts) -> None:
    sha256 = digest(accounts.make_token(1, ASKED, NOTE).token)
    assert accounts.directory().tokens[sha256].used_ms is None
    accounts.note_used(1, {sha256: 77, "0" * 64: 78})
    assert accounts.directory().tokens[sha256].used_ms == 77


def test_a_look_begun_before_a_change_is_not_kept(accounts: Accounts, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts.set_role(1, "red", "bob", "viewer", NOTE)
    real = store.reading

    def slow() -> object:
        monkeypatch.setattr(store, "reading", real)
        looked = accounts.directory()
        accounts.add_team(1, "green", NOTE)
        assert "green" not in looked.teams
        return real()

    monkeypatch.setattr(store, "reading", slow)
    accounts.directory()
    assert "green" in accounts.directory().teams
