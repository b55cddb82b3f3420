"""A home's decisions as one file, of either database and into either. Secrets stay sealed in it; keys and blobs are not in it.

A backup is one look (a read transaction), so a server may run. A restore is one transaction: a database is full or as empty as it
was. It leads above what agents saw up to the backup and a good while after; further ones raise it as they say Hello.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, MetaData, Table, delete, func, insert, inspect, select, text

from phalanx.core.errors import Conflict, SetupError
from phalanx.core.views import BackupView, RestoreView
from phalanx.operate import daemons
from phalanx.operate.control import backup_file, database_home, migrations
from phalanx.operate.control.backup_file import Head
from phalanx.operate.control.databases import address
from phalanx.operate.control.store import FIRST_LEASED, Store
from phalanx.operate.control.tables import access_tokens, join_tokens
from phalanx.operate.home import open_home

EPOCHS_AHEAD: Final = 1_000
"""By which a restored database leads: each start of a server after the backup made one more."""

_BATCH: Final = 500
_BYTES: Final = "base64"
_OF_ALEMBIC: Final = "alembic_version"


def backup(home: Path, path: Path, now_ms: int, version: str) -> BackupView:
    """Writes the home's database into a new file. Raises SetupError for a home without one, a schema before leases, or a file that
    cannot be made; StoreUnavailable."""
    place = database_home.place(home)
    if isinstance(place, Path) and not place.exists():
        raise SetupError("home", str(home), "holds no platform yet; nothing is there to be backed up")
    store = Store(place, upgrade=False)
    try:
        revision = store.revision()
        if revision < FIRST_LEASED:
            fix = f"its schema is {revision or 'none'}, of an older version; `phalanx up` upgrades it"
            raise SetupError("database", store.shown, fix)
        with store.reading() as connection:
            found = _reflected(connection)
            head = Head(
                revision,
                store.identity(),
                _last_seq(connection, found),
                now_ms,
                version,
                store.shown,
                _sequences(connection, found),
            )
            rows = backup_file.write(path, head, _all_rows(connection, found))
    finally:
        store.close()
    return BackupView(
        file=str(path), database=head.database, schema=revision, events=head.last_seq, rows=rows, size_bytes=path.stat().st_size
    )


def restore(home: Path, path: Path, asked: str, environ: Mapping[str, str], keep_tokens: bool = False) -> RestoreView:
    """Makes the file's rows those of the home, in the database that is named, else the home's own. Without `keep_tokens` no token
    of a person comes back, nor a join token that was not used: nobody knows which were revoked since. Raises SetupError: for a file
    that is damaged or newer, a database that is not empty, a home of another platform; Conflict while its platform is up."""
    head = backup_file.check(path)
    open_home(home)
    daemon: daemons.Daemon
    for daemon in ("server", "standby", "agent"):
        if daemons.alive(home, daemon) is not None:
            raise Conflict("home", str(home), "its platform is up; `phalanx down` first")
    _, url = database_home.named(asked, environ)
    url = url or database_home.remembered(home).url
    moved = _check_home(home, head, url)
    store = Store(url or home / database_home.OWN, upgrade=False)
    try:
        rows, left_out = store.restored(lambda connection: _fill(connection, head, path, store.shown, keep_tokens))
        shown = store.shown
    finally:
        store.close()
    if url:
        database_home.remember(home, url, head.identity)
    if moved:
        _put_away(home)
    open_home(home)  # which takes what was made from other users
    return RestoreView(
        home=str(home),
        database=shown,
        schema=head.schema,
        events=head.last_seq,
        rows=rows,
        made_ms=head.made_ms,
        tokens_left_out=left_out,
    )


def _check_home(home: Path, head: Head, url: str) -> bool:
    """Whether the home's own file is to be put away, since what it holds moves to `url`. Raises SetupError."""
    known, own = database_home.remembered(home), home / database_home.OWN
    if known.url and known.id != head.identity:
        fix = f"holds another platform, in {address.masked(known.url)}; choose an empty home"
        raise SetupError("home", str(home), fix)
    if not own.exists():
        return False
    store = Store(own, upgrade=False)
    try:
        if not store.revision():  # of a restore that failed
            return False
        if not url:
            raise SetupError("home", str(home), f"holds a platform already, in {own}; choose an empty home, or move that file away")
        store.upgrade()
        if store.identity() != head.identity:
            raise SetupError("home", str(home), f"holds another platform, in {own}; choose an empty home")
        if store.last_seq() != head.last_seq:
            more = f"went on after this backup (event {store.last_seq()}, not {head.last_seq})"
            raise SetupError("home", str(home), f"{more}; `phalanx down`, then make a new one and restore that")
    finally:
        store.close()
    return True


def _put_away(home: Path) -> None:
    """Its rows are elsewhere now; it is not removed, since it is somebody's last copy until they say so."""
    for suffix in ("", "-wal", "-shm"):
        if (old := home / f"{database_home.OWN}{suffix}").exists():
            old.replace(home / f"{database_home.OWN}.moved{suffix}")


def _fill(connection: Connection, head: Head, path: Path, shown: str, keep_tokens: bool) -> tuple[int, int]:
    """How many rows it has now, and how many tokens were left out."""
    if inspect(connection).get_table_names():
        raise SetupError("database", shown, "is not empty; name an empty one")
    try:
        migrations.upgrade(connection, head.schema)
    except migrations.NewerSchema as error:
        fix = f"was made by a newer version of phalanx (schema {head.schema}); upgrade phalanx"
        raise SetupError("FILE", str(path), fix) from error
    tables = _reflected(connection)
    for table in reversed(tables.values()):
        connection.execute(delete(table))
    rows = 0
    for (name, columns), group in groupby(backup_file.tables(path), key=lambda one: (one[0], tuple(one[1]))):
        while batch := [_read(tables[name], columns, row) for _, _, row in islice(group, _BATCH)]:
            connection.execute(insert(tables[name]), batch)
            rows += len(batch)
    for name, last in head.sequences.items():
        _set_sequence(connection, tables[name], last)
    migrations.upgrade(connection)
    connection.execute(text(f"UPDATE lead SET epoch = epoch + {EPOCHS_AHEAD}, holder = '', expires_ms = 0"))  # noqa: S608 (a number)
    left_out = 0 if keep_tokens else _forget_tokens(connection)
    return rows - left_out, left_out


def _forget_tokens(connection: Connection) -> int:
    unused = delete(join_tokens).where(join_tokens.c.used_by.is_(None))
    return sum(connection.execute(one).rowcount for one in (delete(access_tokens), unused))


def _reflected(connection: Connection) -> dict[str, Table]:
    """The tables that there are, whatever the revision: those that are referred to first."""
    found = MetaData()
    found.reflect(connection)
    return {table.name: table for table in found.sorted_tables if table.name != _OF_ALEMBIC}


def _all_rows(connection: Connection, tables: Mapping[str, Table]) -> Iterator[tuple[str, Sequence[str], Iterator[Sequence[Any]]]]:
    for name, table in tables.items():
        columns = [column.name for column in table.columns]
        query = select(table).order_by(*table.primary_key)
        result = connection.execute(query, execution_options={"yield_per": _BATCH})
        yield name, columns, (tuple(map(_plain, row)) for row in result)


def _plain(value: Any) -> Any:
    return {_BYTES: base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _read(table: Table, columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    values = (base64.b64decode(value[_BYTES]) if isinstance(value, dict) else value for value in row)
    return dict(zip(columns, values, strict=True))


def _last_seq(connection: Connection, tables: Mapping[str, Table]) -> int:
    return int(connection.execute(select(func.max(tables["events"].c.seq))).scalar() or 0)


def _counted(connection: Connection, tables: Mapping[str, Table]) -> list[str]:
    """Tables of which the database counts the rows itself, and gives no number twice."""
    if connection.dialect.name == "sqlite":
        words = text("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'")
        return [name for name in connection.execute(words).scalars() if name in tables]
    asked = text("SELECT pg_get_serial_sequence(quote_ident(:name), 'seq')")
    return [name for name, table in tables.items() if "seq" in table.c and connection.execute(asked, {"name": name}).scalar()]


def _sequences(connection: Connection, tables: Mapping[str, Table]) -> dict[str, int]:
    found = {}
    for name in _counted(connection, tables):
        if connection.dialect.name == "sqlite":
            last = connection.execute(text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": name}).scalar()
        else:
            asked = text("SELECT pg_sequence_last_value(pg_get_serial_sequence(quote_ident(:name), 'seq')::regclass)")
            last = connection.execute(asked, {"name": name}).scalar()
        found[name] = int(last or 0)
    return found


def _set_sequence(connection: Connection, table: Table, last: int) -> None:
    name = {"name": table.name, "last": last}
    if connection.dialect.name == "sqlite":
        connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), name)
        connection.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)"), name)
    elif last:
        connection.execute(text("SELECT setval(pg_get_serial_sequence(quote_ident(:name), 'seq')::regclass, :last)"), name)
