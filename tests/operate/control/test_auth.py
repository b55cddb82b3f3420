"""Tokens: made once, private, known to the database only by hash."""

from pathlib import Path

import pytest

from phalanx.core.errors import SetupError, Unauthorized
from phalanx.operate.control.auth import FILES, digest, open_tokens, token_of
from phalanx.operate.control.store import Store, Superseded
from phalanx.operate.home import open_home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    open_home(tmp_path)
    return tmp_path


def test_the_first_start_makes_two_private_tokens_of_256_bits(home: Path) -> None:
    store = Store(home / "phalanx.db")
    tokens = open_tokens(home, store, 0, 0)
    admin, node = token_of(home, "admin"), token_of(home, "node")
    assert admin != node and min(len(admin), len(node)) >= 43
    assert [(home / name).stat().st_mode & 0o777 for name in ("token", "node-token")] == [0o600, 0o600]
    assert (tokens.role(f"Bearer {admin}"), tokens.role(f"bearer {node}")) == ("admin", "node")
    store.close()


def test_the_database_knows_hashes_only(home: Path) -> None:
    store = Store(home / "phalanx.db")
    open_tokens(home, store, 0, 0)
    admin = token_of(home, "admin")
    assert store.tokens()[digest(admin)] == "admin"
    store.close()
    assert all(admin.encode() not in path.read_bytes() for path in home.glob("phalanx.db*"))


def test_a_second_start_keeps_the_tokens_and_a_deleted_file_revokes_the_old_one(home: Path) -> None:
    store = Store(home / "phalanx.db")
    open_tokens(home, store, 0, 0)
    before = token_of(home, "admin")
    assert open_tokens(home, store, 0, 1).role(f"Bearer {before}") == "admin"
    (home / "token").unlink()
    with pytest.raises(SetupError, match="missing"):
        token_of(home, "admin")
    with pytest.raises(Unauthorized):
        open_tokens(home, store, 0, 2).role(f"Bearer {before}")
    assert digest(before) not in store.tokens()
    store.close()


def test_the_database_decides_and_a_file_lets_nobody_in(home: Path) -> None:
    store = Store(home / "phalanx.db")
    open_tokens(home, store, 0, 0)
    kept = store.tokens()
    (home / "token").write_text("x" * 43 + "\n")
    with pytest.raises(SetupError, match="database"):
        open_tokens(home, store, 0, 1)
    (home / "token").write_text((home / "node-token").read_text())  # known, as another role's
    with pytest.raises(SetupError, match="database"):
        open_tokens(home, store, 0, 1)
    assert store.tokens() == kept
    store.close()


def test_files_that_were_there_before_the_database_are_taken_over(home: Path) -> None:
    (home / "token").write_text("x" * 43 + "\n")
    store = Store(home / "phalanx.db")
    assert open_tokens(home, store, 0, 0).role("Bearer " + "x" * 43) == "admin"
    assert (home / "token").stat().st_mode & 0o777 == 0o600
    store.close()


def test_a_token_readable_by_others_is_made_private_again(home: Path) -> None:
    (home / "token").write_text("x" * 43 + "\n")
    (home / "token").chmod(0o644)
    token_of(home, "admin")
    assert (home / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer wrong", "wrong"])
def test_everything_else_is_refused(home: Path, header: str | None) -> None:
    store = Store(home / "phalanx.db")
    with pytest.raises(Unauthorized):
        open_tokens(home, store, 0, 0).role(header)
    store.close()


def test_an_empty_token_file_opens_nothing(home: Path) -> None:
    (home / "token").write_text("\n")
    with pytest.raises(SetupError, match="delete it"):
        token_of(home, "admin")


def test_a_leader_that_was_superseded_changes_no_token(home: Path) -> None:
    store = Store(home / "phalanx.db")
    open_tokens(home, store, 0, 0)
    known = store.tokens()
    store.take_lead()
    (home / FILES["admin"]).unlink()
    with pytest.raises(Superseded):
        open_tokens(home, store, 0, 1)
    assert store.tokens() == known
    assert not (home / FILES["admin"]).exists()
    store.close()
