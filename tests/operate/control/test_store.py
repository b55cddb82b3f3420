"""The store's promises: one transaction for everything, a home that cannot be used says so, the schema is what the code says."""

import os
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from phalanx.core.errors import Bug, SetupError, StoreUnavailable
from phalanx.core.events import JobSubmitted, NodeUp
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.operate.control.fold import Changes, Draft
from phalanx.operate.control.rows import Commit
from phalanx.operate.control.store import Store
from phalanx.operate.control.tables import metadata
from phalanx.operate.control.world import World
from tests.operate.control.control_bench import Bench, DatabaseLock, a_spec, shape

pytestmark = pytest.mark.both_databases


def a_draft(world: World, number: int = 1) -> Draft:
    draft = Draft(world)
    draft.add(NodeUp(shape("a"), "boot"), 10)
    draft.add(JobSubmitted(JobId(f"tiny-{number}"), a_spec(), "", "c" * 64, "ada"), 11)
    return draft


def commit_of(draft: Draft, **more: object) -> Commit:
    return Commit(draft.events, draft.changes, sequence=draft.world.sequence, **more)  # type: ignore[arg-type] # Commit's own fields


def test_what_was_committed_is_loaded_again(database: Path | str) -> None:
    store = Store(database)
    epoch = store.take_lead()
    assert store.load() == World()
    draft = a_draft(store.load())
    store.commit(epoch, commit_of(draft, outbox=({"note": "é"}, {"n": 2}), key=("k", JobId("tiny-1"))))
    store.close()
    again = Store(database)
    assert again.load() == draft.world
    assert again.events() == draft.events
    assert again.events(after=1, job=JobId("tiny-1")) == draft.events[1:]
    assert again.events(limit=1) == draft.events[:1]
    assert again.job_of_key("k") == "tiny-1"
    assert again.job_of_key("other") is None
    assert [row.entry for row in again.pending_outbox(10)] == [{"note": "é"}, {"n": 2}]
    assert again.outbox_size() == 2
    again.close()


def test_a_commit_that_fails_half_way_leaves_nothing(database: Path | str) -> None:
    """The offset names an attempt that does not exist: the event before it in the same transaction is gone too."""
    store = Store(database)
    epoch = store.take_lead()
    draft = a_draft(World())
    with pytest.raises(Bug, match=r"(?i)foreign key"):
        store.commit(epoch, commit_of(draft, outbox=({"x": 1},), offset=(AttemptId("no-1.1"), 0, 5)))
    assert store.load() == World()
    assert store.events() == []
    assert store.pending_outbox(1) == []
    store.commit(epoch, commit_of(draft))
    with pytest.raises(Bug, match=r"(?i)unique"):
        store.commit(epoch, commit_of(draft))
    assert store.load() == draft.world
    assert store.last_seq() == draft.world.seq == 2
    store.close()


def test_a_write_of_an_older_epoch_is_refused(database: Path | str) -> None:
    one, two = Store(database), Store(database)
    old = one.take_lead()
    new = two.take_lead()
    assert (old, new) == (1, 2)
    with pytest.raises(Bug, match="superseded by 2"):
        one.commit(old, commit_of(a_draft(World())))
    with pytest.raises(Bug, match="superseded by 2"):
        one.outbox_done(old, 1)
    two.commit(new, commit_of(a_draft(World())))
    assert one.load() == two.load()
    one.close()
    two.close()


def test_the_database_is_durable_and_checked(tmp_path: Path) -> None:
    store = Store(tmp_path / "p.db")
    with store._reading() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    store.close()


def test_the_schema_is_what_the_code_says(database: Path | str) -> None:
    Store(database).close()
    engine = create_engine(f"sqlite:///{database}" if isinstance(database, Path) else database.replace(":", "+psycopg:", 1))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_opening_again_migrates_nothing_and_keeps_everything(database: Path | str) -> None:
    for _ in range(3):
        store = Store(database)
        store.take_lead()
        store.close()
    store = Store(database)
    assert store.take_lead() == 4
    store.close()


def test_a_home_may_have_any_name(tmp_path: Path) -> None:
    home = tmp_path / "a b?c=%20#ü"
    home.mkdir()
    store = Store(home / "p.db")
    assert store.take_lead() == 1
    store.close()
    assert (home / "p.db").is_file()


def test_a_home_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    Store(tmp_path / "p.db").close()
    with sqlite3.connect(tmp_path / "p.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    with pytest.raises(SetupError, match=r"newer version of phalanx \(schema 9999\); upgrade phalanx") as caught:
        Store(tmp_path / "p.db")
    assert caught.value.value == str(tmp_path)


def test_a_home_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    """As root no permission stops us, so the home is one that nobody can write; else also a read-only folder."""
    homes = [Path("/proc/self")]
    if os.geteuid() != 0:
        Store(tmp_path / "p.db").close()
        tmp_path.chmod(0o500)
        homes.append(tmp_path)
    try:
        for home in homes:
            with pytest.raises(SetupError, match="make the folder writable, or choose another PHALANX_HOME") as caught:
                Store(home / "p.db")
            assert caught.value.value == str(home)
    finally:
        tmp_path.chmod(0o700)


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "p.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(SetupError, match="not a database"):
        Store(tmp_path / "p.db")


def test_another_writer_makes_it_unavailable_and_readers_go_on(bench: Bench, locked: DatabaseLock) -> None:
    with locked:
        with pytest.raises(StoreUnavailable, match="lock"):
            bench.store.take_lead()
        assert bench.store.load() == World()
    assert bench.store.load() == World()


def test_tokens_are_replaced_as_a_whole(database: Path | str) -> None:
    store = Store(database)
    store.set_tokens(store.leader().epoch, {"a" * 64: "admin", "b" * 64: "node"}, 5)
    store.set_tokens(store.leader().epoch, {"a" * 64: "admin", "c" * 64: "node"}, 6)
    assert store.tokens() == {"a" * 64: "admin", "c" * 64: "node"}
    store.close()


def test_changes_alone_carry_every_table(database: Path | str) -> None:
    store = Store(database)
    epoch = store.take_lead()
    store.commit(epoch, Commit((), Changes()))
    assert store.load() == World()
    assert NodeId("a") not in store.load().nodes
    store.close()
