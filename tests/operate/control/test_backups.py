"""A backup is one moment of either database, and a restore is whole, into either, or nothing."""

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from phalanx.core.errors import SetupError
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.messages import ArtifactSaved
from phalanx.core.people import BUILT_IN, TokenRequest
from phalanx.core.records import CheckpointCommitted, ModelSaved
from phalanx.operate.control import artifacts, auth, backup_file, backups, database_home, joining
from phalanx.operate.control.backups import EPOCHS_AHEAD, backup, restore
from phalanx.operate.control.controller import Controller
from phalanx.operate.control.fold import fold_all
from phalanx.operate.control.people.accounts import Accounts
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.secrets import Secrets
from phalanx.operate.control.store import Store
from phalanx.operate.control.world import World
from tests.operate.control.control_bench import Bench, a_spec
from tests.postgres import PASSWORD, Postgres

pytestmark = pytest.mark.both_databases
FIRST = AttemptId("tiny-1.1")


def lived_in(bench: Bench) -> Bench:
    """Something in every table."""
    agent = bench.add("a")
    bench.submit(a_spec("tiny"), key="k")
    bench.tick(2)
    agent.run(FIRST)
    bench.tick()
    store, epoch = bench.store, bench.control.epoch
    saved = CheckpointCommitted(rank=0, step=1, path="/c", digest="d", size_bytes=1, at_ms=5)
    model = ModelSaved(rank=0, step=1, path="/m", weights_digest="e", metrics={}, lineage={}, at_ms=5)
    bench.control.facts(agent.node, FIRST, 0, 10, [saved, model])
    artifacts.note(store, epoch, ArtifactSaved(FIRST, "é/ü.txt", "a" * 64, 3, 9))
    Secrets(bench.home, store, lambda: 1).put(epoch, "KEY", b"canary-value")
    auth.open_tokens(bench.home, store, epoch, 1)
    token, _ = joining.make_token(store, epoch, 60_000, 5)
    joining.exchange(store, epoch, token, "b" * 64, agent.node, 10)
    bench.submit(a_spec("waits"))
    with store.leading(epoch) as connection:
        for number in range(3):
            connection.execute(text("INSERT INTO outbox (entry) VALUES (:entry)"), {"entry": json.dumps({"n": number})})
        connection.execute(text("DELETE FROM outbox WHERE seq > 1"))
        notice = {"webhook": "https://hook.example", "entry": "{}", "tries": 0, "due_ms": 1}
        connection.execute(
            text("INSERT INTO notices (webhook, entry, tries, due_ms) VALUES (:webhook, :entry, :tries, :due_ms)"), notice
        )
    if not isinstance(bench.database, Path):
        database_home.remember(bench.home, bench.database, store.identity())
    return bench


Target = Callable[[], str]


@pytest.fixture(params=["into sqlite", "into postgres"])
def into(request: pytest.FixtureRequest) -> Target:
    """URL of an empty database, '' for the home's own."""
    if request.param == "into sqlite":
        return lambda: ""
    return lambda: str(request.getfixturevalue("postgres_server").empty())


def test_what_was_backed_up_while_it_was_written_comes_back_whole_in_either(
    bench: Bench, tmp_path: Path, into: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, home = tmp_path / "b", tmp_path / "new"
    world, events = lived_in(bench).world, bench.events()
    written = backup_file.write

    def busy(*given: object) -> int:
        """The platform goes on once the look was taken."""
        bench.submit(a_spec("later"))
        return written(*given)  # type: ignore[arg-type] # as given

    monkeypatch.setattr(backup_file, "write", busy)
    view = backup(bench.home, file, 7, "1")
    assert (view.events, file.stat().st_mode & 0o777) == (world.seq, 0o600)
    data = gzip.decompress(file.read_bytes())
    assert b"canary" not in data and PASSWORD.encode() not in data
    restored = restore(home, file, "", {database_home.VARIABLE: into()}, keep_tokens=True)
    assert (restored.rows, restored.events, restored.made_ms) == (view.rows, world.seq, 7)
    store = Store(database_home.place(home))
    assert store.load() == world == fold_all(World(), store.events(limit=100_000))
    assert store.events(limit=100_000) == events
    assert store.identity() == bench.store.identity()
    assert store.records_offsets() == bench.store.records_offsets() != {}
    assert store.job_of_key("k") == "tiny-1"
    assert [item.name for item in artifacts.of_attempts(store, [FIRST], ("", ""), 9)] == ["é/ü.txt"]
    assert joining.credentials(store) == {"b" * 64: "a"}
    epoch = store.take_lead()
    assert epoch == bench.control.epoch + EPOCHS_AHEAD + 1
    (home / "secret.key").write_bytes((bench.home / "secret.key").read_bytes())
    assert Secrets(home, store, lambda: 1).values(["KEY"]) == {"KEY": "canary-value"}
    with store.leading(epoch) as connection:
        connection.execute(text("INSERT INTO outbox (entry) VALUES ('{}')"))
        connection.execute(text("INSERT INTO notices (webhook, entry, tries, due_ms) VALUES ('', '{}', 0, 0)"))
    assert [row.seq for row in store.pending_outbox(9)] == [1, 4], "no number twice, also one that is gone"
    store.close()


@pytest.mark.sqlite_only
def test_a_platform_moves_from_its_file_to_postgresql_and_its_nodes_obey(
    tmp_path: Path, bench: Bench, postgres_server: Postgres
) -> None:
    agent = lived_in(bench).agents["a"]
    backup(bench.home, tmp_path / "old", 7, "1")
    bench.submit(a_spec("later"))
    bench.tick()
    url = postgres_server.empty()
    environ = {database_home.VARIABLE: url}
    bench.store.close()
    with pytest.raises(SetupError, match=r"went on after this backup .*make a new one"):
        restore(bench.home, tmp_path / "old", "", environ)
    backup(bench.home, tmp_path / "new", 8, "1")
    assert not (bench.home / "database.json").exists()
    restore(bench.home, tmp_path / "new", "", environ)
    assert database_home.place(bench.home) == url
    assert sorted(path.name for path in bench.home.glob("phalanx.db*"))[0] == "phalanx.db.moved"
    before = bench.world
    bench.database = url
    bench.restart()
    assert bench.world == before
    agent.hello()
    bench.tick()
    assert agent.held[FIRST].phase == "running", "its ranks go on"
    bench.control.cancel(JobId("tiny-1"), "ada")
    bench.tick()
    assert agent.epoch == bench.control.epoch > EPOCHS_AHEAD


def _backed_up(bench: Bench, tmp_path: Path) -> Path:
    backup(lived_in(bench).home, tmp_path / "b", 7, "1")
    return tmp_path / "b"


def test_a_home_or_a_database_that_is_not_empty_is_refused(bench: Bench, tmp_path: Path, postgres_server: Postgres) -> None:
    file = _backed_up(bench, tmp_path)
    with pytest.raises(SetupError, match=r"holds a platform already|is not empty"):
        restore(bench.home, file, "", {})
    other = tmp_path / "other"
    other.mkdir()
    Store(other / "phalanx.db").close()
    for environ in ({}, {database_home.VARIABLE: postgres_server.empty()}):
        with pytest.raises(SetupError, match=r"holds a platform already|holds another platform"):
            restore(other, file, "", environ)
    url = postgres_server.empty()
    postgres_server.say("CREATE TABLE theirs (x int)", database=url.rpartition("/")[2])
    with pytest.raises(SetupError, match="is not empty; name an empty one") as refused:
        restore(tmp_path / "new", file, "", {database_home.VARIABLE: url})
    assert PASSWORD not in str(refused.value)
    assert not (tmp_path / "new" / "database.json").exists()


def test_a_file_that_is_damaged_anywhere_or_newer_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    file = _backed_up(bench, tmp_path)
    good, lines = file.read_bytes(), gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    head = json.loads(lines[0])
    wrong = {
        "half": good[: len(good) // 2],
        "a bit": good[:-40] + bytes([good[-40] ^ 1]) + good[-39:],
        "a row less": gzip.compress(b"".join(lines[:5] + lines[6:])),
        "no end": gzip.compress(b"".join(lines[:-1])),
        "text": b"hello",
        "empty": b"",
        "another": gzip.compress(b'{"a": 1}\n'),
    }
    for name, data in wrong.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SetupError, match="is damaged or no backup of Phalanx"):
            restore(tmp_path / "new", tmp_path / name, "", {})
    with pytest.raises(SetupError, match="name a file of `phalanx backup`"):
        restore(tmp_path / "new", tmp_path / "none", "", {})
    newer = backup_file.Head(**{**{name: head[name] for name in backup_file.Head.__slots__}, "schema": "9999"})
    backup_file.write(tmp_path / "newer", newer, iter(()))
    with pytest.raises(SetupError, match=r"newer version of phalanx \(schema 9999\)"):
        restore(tmp_path / "new", tmp_path / "newer", "", {})
    restore(tmp_path / "new", file, "", {})
    assert (tmp_path / "new" / "phalanx.db").stat().st_mode & 0o077 == 0, "what failed before is not in the way"


def test_a_restore_that_fails_half_way_leaves_the_database_empty(
    bench: Bench, tmp_path: Path, into: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, url = _backed_up(bench, tmp_path), into()

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(backups, "_set_sequence", broken)
        restore(tmp_path / "new", file, "", {database_home.VARIABLE: url})
    assert not (tmp_path / "new" / "database.json").exists()
    restore(tmp_path / "new", file, "", {database_home.VARIABLE: url})


@pytest.mark.sqlite_only
def test_what_cannot_be_backed_up_is_named_and_leaves_no_file(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="holds no platform yet"):
        backup(tmp_path, tmp_path / "b", 7, "1")
    with pytest.raises(SetupError, match="there is no folder"):
        backup(bench.home, tmp_path / "none" / "b", 7, "1")
    (tmp_path / "there").touch()
    with pytest.raises(SetupError, match="is there already"):
        backup(bench.home, tmp_path / "there", 7, "1")
    old = tmp_path / "old"
    old.mkdir()
    sqlite3.connect(old / "phalanx.db").close()
    with pytest.raises(SetupError, match="of an older version; `phalanx up` upgrades it"):
        backup(old, tmp_path / "b", 7, "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "old", "there"]
    assert JobId("x") not in Controller(bench.store, bench.clock, bench.links, bench.settings, 1).world.jobs


def test_a_link_where_an_unfinished_backup_would_lie_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.write_text("kept")
    (tmp_path / ".b.unfinished").symlink_to(others)
    lived_in(bench)
    backup(bench.home, tmp_path / "b", 7, "1")
    assert others.read_text() == "kept"
    assert not (tmp_path / "b").is_symlink() and not (tmp_path / ".b.unfinished").is_symlink()


@pytest.mark.sqlite_only
@pytest.mark.parametrize("keep_tokens", [False, True])
def test_no_token_comes_back_that_may_have_been_revoked_since(bench: Bench, tmp_path: Path, keep_tokens: bool) -> None:
    lived_in(bench)
    epoch = bench.control.epoch
    accounts = Accounts(bench.store, bench.clock.now_ms)
    note = Note(at_ms=5, who="admin", token="admin", what="x.y", target="t", address="")
    accounts.add_user(epoch, "ada", True, note)
    made = accounts.make_token(epoch, TokenRequest(name="laptop", user="ada"), note)
    joining.make_token(bench.store, epoch, 60_000, 5)
    view = backup(bench.home, tmp_path / "b", 7, "1")
    accounts.revoke_token(epoch, made.view.id, BUILT_IN, note)
    restored = restore(tmp_path / "new", tmp_path / "b", "", {}, keep_tokens)
    left_out = 0 if keep_tokens else 2
    assert (restored.tokens_left_out, restored.rows) == (left_out, view.rows - left_out)
    store = Store(tmp_path / "new" / "phalanx.db")
    known = Accounts(store, bench.clock.now_ms).directory()
    assert (list(known.tokens.values()), list(known.users)) == ([made.view] if keep_tokens else [], ["ada"])
    with store.reading() as connection:
        used = connection.execute(text("SELECT used_by FROM join_tokens")).scalars().all()
    assert sorted(used, key=str) == (["a"] if not keep_tokens else [None, "a"])
    store.close()
