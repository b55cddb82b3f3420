"""Every schema that was released is upgraded to this version's, with its rows, on both databases; or left as it was."""

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from phalanx.core.errors import SetupError
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.states import Finished
from phalanx.operate.control import artifacts, backup_file, backups, joining, migrations
from phalanx.operate.control.controller import Controller, Settings
from phalanx.operate.control.secrets import Secrets
from phalanx.operate.control.store import Store
from phalanx.operate.control.tables import metadata
from tests.operate.control.control_bench import ManualClock, no_outbox, plain_lineage
from tests.operate.control.released_schemas import KEYS, copy, dumps, load
from tests.postgres import Postgres

STATES = {
    "tiny-1": "finished", "fails-2": "finished", "runs-3": "running", "cancelled-4": "finished", "waits-5": "starting",
    "waits-too-6": "pending",
}  # fmt: skip
Older = Callable[[str], Path | str]


@pytest.fixture(params=["sqlite", "postgres"])
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Older:
    """Where a database of that revision is."""

    def made(revision: str) -> Path | str:
        file = tmp_path / "phalanx.db"
        load(dumps()[revision], file)
        if request.param == "sqlite":
            return file
        server: Postgres = request.getfixturevalue("postgres_server")
        url = server.empty()
        store = Store(url, upgrade=False)
        store.restored(lambda connection: copy(file, connection, revision))
        store.close()
        return url

    return made


def test_every_revision_before_the_newest_has_a_dump() -> None:
    assert list(dumps()) == [f"{number:04}" for number in range(1, len(dumps()) + 1)]
    assert int(migrations.newest()) > len(dumps()) >= 3


@pytest.mark.parametrize("revision", dumps())
def test_it_is_upgraded_with_every_row_and_led_on(older: Older, revision: str, tmp_path: Path) -> None:
    store = Store(older(revision))
    assert store.revision() == migrations.newest()
    with store.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    world = store.load()
    assert {job.id: job.state.name for job in world.jobs.values()} == STATES
    assert world.seq == len(store.events()) == store.last_seq()
    assert [model.lineage["recipe"] for model in world.models["tiny"]] == ["é"]
    assert store.job_of_key("k-tiny") == "tiny-1"
    assert store.records_offsets() == {(AttemptId("tiny-1.1"), 0): 100}
    assert store.outbox_size() == 6
    assert sorted(store.tokens().values()) == ["admin", "node"]
    assert store.leader().epoch == 3 and store.leader().holder == ""
    assert store.identity() > 0
    _check_later(store, revision, tmp_path)
    settings = Settings(home=tmp_path, lineage=plain_lineage, outbox_for=no_outbox)
    control = Controller(store, ManualClock(), {}, settings)
    assert control.epoch == 4
    control.cancel(JobId("waits-too-6"), "ada")
    assert isinstance(store.load().jobs[JobId("waits-too-6")].state, Finished)
    with store.leading(4) as connection:
        connection.exec_driver_sql("INSERT INTO outbox (entry) VALUES ('{}')")
    assert [row.seq for row in store.pending_outbox(9)][-1] == 7, "no number twice"
    store.close()


def _check_later(store: Store, revision: str, home: Path) -> None:
    if revision >= "0002":
        (home / "secret.key").write_bytes(KEYS[revision])
        assert Secrets(home, store, lambda: 1).values(["KEY"]) == {"KEY": "value"}
        assert joining.credentials(store) == {"f" * 64: "a"}
        assert [item.name for item in artifacts.of_attempts(store, [AttemptId("tiny-1.1")], ("", ""), 9)] == ["plots/ü.png"]
        assert store.load().nodes[NodeId("b")].drained is not None
    if revision >= "0003":
        world = store.load()
        assert "research" in world.policy.queues
        assert world.usage != {}


def test_an_upgrade_that_fails_half_way_leaves_the_old_schema(older: Older, monkeypatch: pytest.MonkeyPatch) -> None:
    where = older("0003")

    def broken(_: int) -> int:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="the disk is full"):
        patched.setattr(secrets, "randbits", broken)
        Store(where)
    left = Store(where, upgrade=False)
    assert left.revision() == "0003"
    with left.reading() as connection:
        assert "lead" not in inspect(connection).get_table_names()
        assert connection.exec_driver_sql("SELECT value FROM meta WHERE key = 'epoch'").scalar() == 3
    left.upgrade()
    assert left.take_lead() == 4
    left.close()


def test_a_backup_of_an_older_schema_is_upgraded_as_it_is_restored(tmp_path: Path) -> None:
    load(dumps()["0003"], tmp_path / "old.db")
    old = Store(tmp_path / "old.db", upgrade=False)
    with old.reading() as connection:
        tables = backups._reflected(connection)
        head = backup_file.Head("0003", 0, 24, 1, "0", "old", backups._sequences(connection, tables))
        backup_file.write(tmp_path / "b", head, backups._all_rows(connection, tables))
    old.close()
    backups.restore(tmp_path / "home", tmp_path / "b", "", {})
    store = Store(tmp_path / "home" / "phalanx.db", upgrade=False)
    assert store.revision() == migrations.newest()
    assert {job.id: job.state.name for job in store.load().jobs.values()} == STATES
    store.close()


def test_one_that_is_newer_is_refused_and_untouched(older: Older) -> None:
    store = Store(older("0003"), upgrade=False)
    with store.reading() as connection:
        before = inspect(connection).get_table_names()
    with store._writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for ask in (store.upgrade, store.revision):
        with pytest.raises(SetupError, match=r"newer version of phalanx \(schema 9999\)"):
            ask()
    with store.reading() as connection:
        assert inspect(connection).get_table_names() == before
    store.close()
