"""The lease: one leader on the database's clock, whoever hangs; and the words of who may not lead."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import update

from phalanx.core import wire
from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.operate import daemons
from phalanx.operate.control import auth, gang_keys, leadership, standby, tables
from phalanx.operate.control.leadership import Holder, Leadership, await_lead, claim, end_stalled, is_gone, this_process
from phalanx.operate.control.secrets import Secrets
from phalanx.operate.control.store import Held, Store, Superseded
from tests.operate.control.control_bench import DatabaseLock

pytestmark = pytest.mark.both_databases
LONG_MS = 600_000


@pytest.fixture
def store(database: Path | str) -> Iterator[Store]:
    opened = Store(database, busy_ms=50)
    yield opened
    opened.close()


class Clock:
    """CLOCK_BOOTTIME, by hand."""

    ms = 0

    def __call__(self) -> int:
        return self.ms


def leading(store: Store, home: str = "/one", lease_ms: int = LONG_MS, clock: Clock | None = None) -> Leadership:
    return Leadership(store, this_process(Path(home)), lease_ms, clock or Clock())


def past(store: Store) -> None:
    """The lease is over, as when nobody renews it."""
    with store.reading() as connection:
        now_ms = int(connection.execute(store._database.now_ms).scalar_one())
    with store._writing() as connection:
        connection.execute(update(tables.lead).values(expires_ms=now_ms - 1))


def test_one_of_two_leads_until_its_lease_is_over_and_then_it_renews_nothing(store: Store) -> None:
    one, two = leading(store, "/one"), leading(store, "/two")
    assert one.claim() == 1
    held = two.claim()
    assert isinstance(held, Held) and 0 < held.left_ms <= LONG_MS
    one.renew()
    past(store)
    assert two.claim() == 2
    with pytest.raises(Superseded, match="superseded by epoch 2"):
        one.renew()
    with pytest.raises(Superseded):
        store.outbox_done(1, 1)
    two.close()
    one.close()
    assert replace(store.leader(), left_ms=0) == Held(2, "", 0, 0)
    assert leading(store).claim() == 3, "given back, so nobody waits"


def test_a_lease_that_ran_out_is_renewed_where_nobody_took_over(store: Store) -> None:
    clock = Clock()
    lead = leading(store, lease_ms=3_000, clock=clock)
    assert lead.claim() == 1
    lead.check()
    clock.ms = 3_000
    with pytest.raises(StoreUnavailable, match="decides nothing"):
        lead.check()
    past(store)
    lead.renew()
    lead.check()
    store.check_lead(1)


def test_a_lease_counts_from_before_it_was_asked_for(store: Store, database: Path | str) -> None:
    clock = Clock()
    lead = leading(store, lease_ms=3_000, clock=clock)
    lead.claim()
    with DatabaseLock(database), pytest.raises(StoreUnavailable):
        lead.renew()
    renew = store.renew_lead

    def slow(holder: str, lease_ms: int) -> None:
        renew(holder, lease_ms)
        clock.ms += 2_999

    store.renew_lead = slow  # type: ignore[method-assign] # an answer that was long on its way
    lead.renew()
    lead.check()
    clock.ms += 1
    with pytest.raises(StoreUnavailable):
        lead.check()


def test_a_raised_epoch_keeps_the_lease(store: Store) -> None:
    lead = leading(store)
    assert lead.claim() == 1
    store.raise_epoch(1, 41)
    lead.renew()
    assert store.leader().epoch == 41


def test_the_thread_tells_once_that_another_leads(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "RENEW_MS", 10)
    lead, told, errors = leading(store), Event(), list[BaseException]()
    lead.claim()

    def tell(error: BaseException) -> None:
        errors.append(error)
        told.set()

    lead.keep(tell)
    store.take_lead()
    assert told.wait(60)
    lead.close()
    assert [type(error) for error in errors] == [Superseded]


def test_who_has_certainly_ended_is_not_waited_for(store: Store) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ours = this_process(Path("/one"))
    dead = replace(ours, pid=gone.pid, start_ticks=daemons.start_ticks(gone.pid))
    assert not is_gone(wire.dumps(Holder, dead))
    gone.communicate(b"\n")
    assert is_gone(wire.dumps(Holder, dead))
    for unknown in (replace(dead, boot="other"), replace(dead, namespace="other")):
        assert not is_gone(wire.dumps(Holder, unknown)), "from here nobody can tell"
    assert not is_gone("words of another version")
    Leadership(store, dead, LONG_MS, Clock()).claim()
    assert leading(store).claim() == 2


def test_a_second_server_is_refused_by_name_and_one_that_renews_no_more_is_waited_for(store: Store) -> None:
    first = leading(store, "/srv/first")
    first.claim()
    with pytest.raises(SetupError, match=r"another control plane \(pid \d+ on .*, of /srv/first\) leads it.*--standby"):
        claim(leading(store), store.shown, sleep=lambda _: first.renew())
    assert claim(leading(store), store.shown, sleep=lambda _: past(store)) == 2


def test_a_standby_waits_while_the_database_is_away_and_leads_when_nobody_does(store: Store, database: Path | str) -> None:
    first, waits, looks = leading(store, "/srv/first"), list[str](), list[float]()
    first.claim()
    lock = DatabaseLock(database)

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            lock.__enter__()
        if len(looks) == 4:
            lock.__exit__()
            past(store)

    assert await_lead(leading(store), store, waits.append, sleep) == 2
    assert len(waits) == 1 and "/srv/first" in waits[0]
    assert len(looks) == 4


_STALLED = """
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute("BEGIN IMMEDIATE"); print("holds", flush=True); input()
"""


@pytest.mark.sqlite_only
def test_a_leader_stopped_inside_of_a_transaction_is_killed_once_its_lease_is_over(store: Store, database: Path) -> None:
    argv = [sys.executable, "-c", _STALLED, str(database)]
    stalled = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder = replace(this_process(Path("/one")), pid=stalled.pid, start_ticks=daemons.start_ticks(stalled.pid))
    Leadership(store, holder, LONG_MS, Clock()).claim()
    assert stalled.stdout is not None and stalled.stdout.readline() == b"holds\n"
    os.kill(stalled.pid, signal.SIGSTOP)
    end_stalled(store)
    assert stalled.poll() is None, "its lease holds"
    lock = sqlite3.connect(database)
    with pytest.raises(StoreUnavailable):
        store.take_lead()
    os.kill(stalled.pid, signal.SIGCONT)
    stalled.communicate(b"\n")

    again = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other = replace(holder, pid=again.pid, start_ticks=daemons.start_ticks(again.pid))
    Leadership(store, other, LONG_MS, Clock()).claim()
    past(store)
    assert again.stdout is not None and again.stdout.readline() == b"holds\n"
    end_stalled(store)
    assert again.poll() is None, "one that runs is about to go on: it may be upgrading the schema"
    os.kill(again.pid, signal.SIGSTOP)
    assert await_lead(leading(store), store, lambda _: None, lambda _: None) == 3
    assert again.wait(60) == -signal.SIGKILL
    lock.close()
    for process in (stalled, again):
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def test_a_standby_elsewhere_is_told_every_file_that_it_lacks(store: Store, tmp_path: Path) -> None:
    home, other = tmp_path / "leads", tmp_path / "waits"
    home.mkdir()
    other.mkdir()
    epoch = store.take_lead()
    auth.open_tokens(home, store, store.leader().epoch, 1)
    gang_keys.gang_key(home)
    Secrets(home, store, lambda: 1).put(epoch, "KEY", b"value")
    leader = this_process(home)
    assert standby.check(home, store, leader) == ()
    with pytest.raises(SetupError, match=f"token, node-token, gang.key, secret.key; copy it from {home} on {leader.host}"):
        standby.check(other, store, leader)
    elsewhere = replace(leader, home=str(other), host="far", boot="another")
    for who in (elsewhere, None):
        with pytest.raises(SetupError, match=r"token, node-token, gang\.key, secret\.key"):
            standby.check(other, store, who)  # a folder of the same name on another machine, and between two leaders
    for name in ("token", "node-token", "gang.key", "secret.key"):
        (other / name).write_bytes((home / name).read_bytes())
    lacking = standby.check(other, store, leader)
    assert [words.partition(" ")[0] for words in lacking] == ["blobs", "the", "the"]
    (other / "token").write_text("x" * 43)
    with pytest.raises(SetupError, match=r"token \(another one is there\)"):
        standby.check(other, store, leader)
