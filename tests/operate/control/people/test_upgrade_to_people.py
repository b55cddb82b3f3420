"""A home from before there were teams: its secrets open, its jobs are the platform's own, and its token is the admin's."""

import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from phalanx.core.people import BUILT_IN
from phalanx.operate.control import auth
from phalanx.operate.control.secret_keys import KeyFile, seal
from phalanx.operate.control.secrets import KEY_FILE, Secrets
from phalanx.operate.control.store import Store


def before_teams(home: Path) -> None:
    """The database as the schema before made it, with a secret and a job's row in it."""
    config = Config()
    config.set_main_option("script_location", "phalanx.operate.control:migrations")
    engine = create_engine(f"sqlite:///{home}/phalanx.db")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0003")
    engine.dispose()
    (key,) = KeyFile(home / KEY_FILE).read(make=True)
    sealed = seal(key, "TOKEN", b"tiger")
    with sqlite3.connect(home / "phalanx.db") as database:
        database.execute("INSERT INTO secrets (name, sealed, created_ms) VALUES ('TOKEN', ?, 7)", (sealed,))
        database.execute("INSERT INTO jobs (id, sequence, state, record) VALUES ('old-1', 1, 'pending', '{}')")
    database.close()


def test_what_there_was_is_the_platforms_own(tmp_path: Path) -> None:
    before_teams(tmp_path)
    store = Store(tmp_path / "phalanx.db")
    kept = Secrets(tmp_path, store, lambda: 0)
    assert kept.values(["TOKEN"]) == {"TOKEN": "tiger"}
    assert [(view.name, view.team, view.set_ms) for view in kept.views()] == [("TOKEN", "", 7)]
    assert kept.values(["TOKEN"], "red") == {} and kept.missing(["TOKEN"], "red") == ("TOKEN",)
    with store.reading() as connection:
        assert connection.exec_driver_sql("SELECT id, team FROM jobs").all() == [("old-1", "")]
        assert connection.exec_driver_sql("SELECT count(*) FROM sqlite_master WHERE name = 'secrets'").scalar() == 0
    tokens = auth.open_tokens(tmp_path, store, store.leader().epoch, 0)
    assert tokens.caller(f"Bearer {(tmp_path / 'token').read_text().strip()}").role == "admin" and BUILT_IN.rules
    store.close()


def test_a_value_of_one_team_opens_under_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path / "phalanx.db")
    store.take_lead()
    kept = Secrets(tmp_path, store, lambda: 0)
    for team in ("", "red", "blue"):
        kept.put(1, "KEY", f"of {team}".encode(), team)
    assert [kept.values(["KEY"], team) for team in ("", "red", "blue")] == [{"KEY": f"of {team}"} for team in ("", "red", "blue")]
    kept.remove(1, "KEY", "red")
    assert (kept.values(["KEY"], "red"), kept.values(["KEY"])) == ({}, {"KEY": "of "})
    store.close()
