"""A home with very many jobs, made of two that a platform ran: their rows again and again under other names."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

_OF_A_JOB: Final = (("jobs", "id"), ("attempts", "job"), ("events", "job"))

Row = dict[str, Any]


@contextlib.contextmanager
def _open(home: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(home / "phalanx.db")
    connection.row_factory = sqlite3.Row
    with contextlib.closing(connection), connection:
        yield connection


def multiply(home: Path, copies: dict[str, int]) -> None:
    """Of each job that is named so many copies, with its attempts and events. No server may have the home."""
    with _open(home) as database:
        sequence = _one(database, "SELECT value FROM meta WHERE key = 'sequence'")
        seq = _one(database, "SELECT max(seq) FROM events")
        for job, count in copies.items():
            kept = {table: _rows(database, table, column, job) for table, column in _OF_A_JOB}
            made: dict[str, list[Row]] = {table: [] for table in kept}
            for _ in range(count):
                sequence += 1
                for table, rows in kept.items():
                    for row in rows:
                        made[table].append(_renamed(row, job, f"{job.rpartition('-')[0]}-{sequence}"))
                made["jobs"][-1] |= {"sequence": sequence, "record": _numbered(made["jobs"][-1]["record"], sequence)}
            for row in made["events"]:
                seq += 1
                row["seq"] = seq
            for table, rows in made.items():
                _insert(database, table, rows)
        database.execute("UPDATE meta SET value = ? WHERE key = 'sequence'", (sequence,))


def _one(database: sqlite3.Connection, query: str) -> int:
    return int(database.execute(query).fetchone()[0])


def _rows(database: sqlite3.Connection, table: str, column: str, job: str) -> list[Row]:
    return [dict(row) for row in database.execute(f"SELECT * FROM {table} WHERE {column} = ?", (job,))]


def _renamed(row: Row, old: str, new: str) -> Row:
    """Also inside of records and ids of attempts."""
    return {name: _with(value, old, new) if isinstance(value, str) else value for name, value in row.items()}


def _with(text: str, old: str, new: str) -> str:
    return new if text == old else text.replace(f'"{old}"', f'"{new}"').replace(f"{old}.", f"{new}.")


def _numbered(record: str, sequence: int) -> str:
    return json.dumps(json.loads(record) | {"sequence": sequence})


def _insert(database: sqlite3.Connection, table: str, rows: Sequence[Row]) -> None:
    if rows:
        names = ", ".join(rows[0])
        values = ", ".join(f":{name}" for name in rows[0])
        database.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", rows)
