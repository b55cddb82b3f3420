"""Databases as earlier versions left them: dumps that each version's own code made, of a platform in the middle of its work."""

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, MetaData, create_engine, delete, insert, select

from phalanx.operate.control import migrations

FOLDER = Path(__file__).parent / "released"
KEYS = {
    "0002": b"wEP8wgWNzKWCY8rad5wxzUG14NrQUcSG+MHuuUVqj5c=\n",
    "0003": b"ReXDusKwWYCsrNl4b1PuDp/ViEBH9IfaDEw2ZDOrdAs=\n",
}
"""secret.key of the home that each dump is of."""


def dumps() -> dict[str, Path]:
    """Revision -> dump."""
    return {path.stem.removeprefix("r"): path for path in sorted(FOLDER.glob("r*.sql"))}


def load(dump: Path, file: Path) -> None:
    """Makes `file` the SQLite database that was dumped."""
    with closing(sqlite3.connect(file)) as database:
        database.executescript(dump.read_text(encoding="utf-8"))


def copy(file: Path, connection: Connection, revision: str) -> None:
    """The rows of such a database in PostgreSQL, with the schema that it had there."""
    migrations.upgrade(connection, revision)
    tables = MetaData()
    tables.reflect(connection)
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as source:
        for table in tables.sorted_tables:
            rows = [dict(row) for row in source.execute(select(table)).mappings()]
            connection.execute(delete(table))
            if rows:
                connection.execute(insert(table), rows)
            if "seq" in table.c and table.name != "events":
                last = source.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,)).scalar()
                if last:
                    connection.exec_driver_sql(f"SELECT setval(pg_get_serial_sequence('{table.name}', 'seq'), {last})")
    engine.dispose()


def put_back(file: Path, revision: str) -> None:
    """Makes a database of the newest schema, at rest, one of an earlier one: with the rows that had a place there."""
    older = file.with_name("older.db")
    load(dumps()[revision], older)
    with closing(sqlite3.connect(older)) as database:
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute("ATTACH ? AS newer", (str(file),))
        names = database.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            if name in ("alembic_version", "sqlite_sequence"):
                continue
            columns = [
                column
                for (column,) in database.execute("SELECT name FROM pragma_table_info(?, 'newer')", (name,))
                if database.execute("SELECT 1 FROM pragma_table_info(?, 'main') WHERE name = ?", (name, column)).fetchone()
            ]
            database.execute(f"DELETE FROM main.{name}")
            if columns:
                listed = ", ".join(columns)
                database.execute(f"INSERT INTO main.{name} ({listed}) SELECT {listed} FROM newer.{name}")
        database.execute("DELETE FROM main.meta WHERE key = 'identity'")
        database.execute("INSERT INTO main.meta SELECT 'epoch', epoch FROM newer.lead")
        database.commit()
    for stale in file.parent.glob(f"{file.name}*"):
        stale.unlink()
    older.replace(file)
