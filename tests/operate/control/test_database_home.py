"""A home's database: chosen once, remembered for its owner alone, and never another one by accident."""

import json
from pathlib import Path

import pytest

from phalanx.core.errors import Conflict, SetupError
from phalanx.operate.control import database_home
from phalanx.operate.control.store import Store
from tests.postgres import PASSWORD, Postgres

VARIABLE = database_home.VARIABLE


def test_a_home_without_a_choice_has_its_own_file(tmp_path: Path) -> None:
    database_home.choose(tmp_path, "", {}, running=False)
    assert database_home.place(tmp_path) == tmp_path / "phalanx.db"
    assert list(tmp_path.iterdir()) == []


def test_what_is_chosen_is_remembered_with_its_password_for_the_owner_alone(tmp_path: Path, postgres_server: Postgres) -> None:
    url = postgres_server.empty()
    database_home.choose(tmp_path, "", {VARIABLE: url}, running=False)
    file = tmp_path / "database.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert database_home.place(tmp_path) == json.loads(file.read_bytes())["url"] == url
    assert PASSWORD not in repr(database_home.remembered(tmp_path))
    without = url.replace(f":{PASSWORD}", "")
    for asked, environ in (("", {}), (without, {}), ("", {VARIABLE: url})):
        database_home.choose(tmp_path, asked, environ, running=True)
    store = Store(database_home.place(tmp_path))
    assert PASSWORD not in store.shown
    store.close()


def test_another_address_of_the_same_database_is_taken_and_another_database_refused(
    tmp_path: Path, postgres_server: Postgres
) -> None:
    url, other = postgres_server.empty(), postgres_server.empty()
    database_home.choose(tmp_path, "", {VARIABLE: url}, running=False)
    moved = url.replace("127.0.0.1", "localhost")
    with pytest.raises(Conflict, match="`phalanx down` first"):
        database_home.choose(tmp_path, "", {VARIABLE: moved}, running=True)
    database_home.choose(tmp_path, "", {VARIABLE: moved}, running=False)
    assert database_home.place(tmp_path) == moved
    with pytest.raises(SetupError, match="`phalanx restore FILE --database URL`") as refused:
        database_home.choose(tmp_path, "", {VARIABLE: other}, running=False)
    assert PASSWORD not in str(refused.value)
    assert database_home.place(tmp_path) == moved


def test_a_home_with_decisions_of_its_own_is_not_pointed_elsewhere(tmp_path: Path, postgres_server: Postgres) -> None:
    Store(tmp_path / "phalanx.db").close()
    with pytest.raises(SetupError, match=r"decisions are in .*phalanx\.db; to move it, `phalanx backup FILE`"):
        database_home.choose(tmp_path, "", {VARIABLE: postgres_server.url("postgres")}, running=False)
    assert not (tmp_path / "database.json").exists()


def test_a_password_in_the_command_line_is_refused_without_it(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="shows its password to whoever lists processes") as refused:
        database_home.choose(tmp_path, "postgresql://ada:canary@db/x", {}, running=False)
    assert "canary" not in str(refused.value)


def test_a_file_that_nobody_could_follow_is_named(tmp_path: Path) -> None:
    (tmp_path / "database.json").write_text("{}")
    with pytest.raises(SetupError, match="name the database with --database"):
        database_home.place(tmp_path)
