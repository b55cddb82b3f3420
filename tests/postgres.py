"""A real PostgreSQL server for the tests: one process of ours on a socket of its own, which the tests' end ends too."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from phalanx.operate.control.store import Store
from phalanx.operate.control.tables import metadata
from tests.ports import free_port

USER, PASSWORD = "phalanx", secrets.token_hex(12)
START_S_MAX = 120.0
_BECOME = """
import ctypes, os, sys
uid, gid, *words = sys.argv[1:]
if uid != "-":
    os.setgroups([]); os.setgid(int(gid)); os.setuid(int(uid))
ctypes.CDLL(None).prctl(1, 2)
os.execv(words[0], words)
"""
"""Another user's process from then on, and PR_SET_PDEATHSIG (linux/prctl.h) with SIGINT, PostgreSQL's fast end: also when the tests
are killed. The order counts: a change of the user takes the second away."""
_QUICK = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "max_connections=60",
    "autovacuum=off",
)
_EMPTIED = ", ".join(f'"{table.name}"' for table in metadata.tables.values())


def programs() -> Path | None:
    """Where `initdb` and `postgres` lie: on the PATH, or where Debian keeps them."""
    found = shutil.which("postgres")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return Path(found).resolve().parent if found else debian[-1].parent if debian else None


class Postgres:
    """Start, stop and address of one server, by a socket in its folder and a port of loopback. It refuses root, so for root it runs
    as another user."""

    def __init__(self) -> None:
        found = programs()
        assert found is not None
        self._programs = found
        self._as = _ordinary_user()
        self._folder = Path(tempfile.mkdtemp(prefix="phalanx-pg-"))
        if self._as is not None:
            os.chown(self._folder, self._as.pw_uid, self._as.pw_gid)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0
        self._cleaned = ""

    def url(self, database: str, user: str = USER, password: str = PASSWORD) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Answers when this returns. Again after `stop` on what it held then."""
        if not (self._folder / "data").exists():
            (self._folder / "password").write_text(PASSWORD)
            (self._folder / "password").chmod(0o644)
            words = [
                f"--pwfile={self._folder / 'password'}",
                "-N",
                "-A",
                "scram-sha-256",
                "-U",
                USER,
                "-E",
                "UTF8",
                "--locale",
                "C",
            ]
            made = self._run([str(self._programs / "initdb"), "-D", str(self._folder / "data"), *words])
            assert made.wait() == 0, self._words()
        options = [word for setting in (*_QUICK, f"port={self.port}") for word in ("-c", setting)]
        where = ["-D", str(self._folder / "data"), "-k", str(self._folder), "-h", "127.0.0.1"]
        self._process = self._run([str(self._programs / "postgres"), *where, *options])
        self._await()

    def _run(self, words: list[str]) -> "subprocess.Popen[bytes]":
        who = ["-", "-"] if self._as is None else [str(self._as.pw_uid), str(self._as.pw_gid)]
        with (self._folder / "log").open("ab") as log:
            argv = [sys.executable, "-I", "-S", "-c", _BECOME, *who, *words]
            return subprocess.Popen(argv, cwd=self._folder, stdout=log, stderr=log)

    def _await(self) -> None:
        end = time.monotonic() + START_S_MAX
        while True:
            assert self._process is not None and self._process.poll() is None, self._words()
            try:
                return self.say("SELECT 1")
            except OperationalError:
                assert time.monotonic() < end, self._words()
                time.sleep(0.05)

    def stop(self, number: int = signal.SIGINT) -> None:
        """Gone when it returns."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(START_S_MAX)
            self._process = None

    def close(self) -> None:
        self.stop(signal.SIGQUIT)  # at once: nobody reads its data again
        shutil.rmtree(self._folder, ignore_errors=True)

    def say(self, *statements: str, database: str = "postgres") -> None:
        """Past every store, as the server's own superuser."""
        engine = create_engine(self.url(database).replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                for statement in statements:
                    connection.execute(text(statement))
        finally:
            engine.dispose()

    def waiting(self, url: str) -> bool:
        """Whether a session of that database waits for a lock."""
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = :name AND wait_event_type = 'Lock'"
        engine = create_engine(self.url("postgres").replace("postgresql:", "postgresql+psycopg:"))
        try:
            with engine.connect() as connection:
                return bool(connection.execute(text(asked), {"name": url.rpartition("/")[2]}).scalar())
        finally:
            engine.dispose()

    def empty(self) -> str:
        """URL of a new database without a table."""
        self._number += 1
        name = f"empty_{self._number}"
        self.say(f"CREATE DATABASE {name}")
        return self.url(name)

    def cleaned(self) -> str:
        """URL of a database of the newest schema without a row, which is the same one each time: others' sessions are ended."""
        if not self._cleaned:
            self._cleaned = self.empty()
            Store(self._cleaned).close()
        name = self._cleaned.rpartition("/")[2]
        self.say(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
            f"TRUNCATE {_EMPTIED} RESTART IDENTITY",
            "INSERT INTO lead VALUES ('leader', 0, '', 0)",
            f"INSERT INTO meta VALUES ('identity', {secrets.randbits(62)})",
            database=name,
        )
        return self._cleaned

    def _words(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-2000:]


def _ordinary_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]
