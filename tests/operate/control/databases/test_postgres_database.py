"""What is PostgreSQL's own: which errors are whose, a leader that stalls, restarts of the server, a role without rights."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text, update

from phalanx.core.errors import Bug, SetupError, StoreUnavailable
from phalanx.operate.control import tables
from phalanx.operate.control.databases.postgres import IDLE_MS
from phalanx.operate.control.leadership import LEASE_MS
from phalanx.operate.control.store import Store, Superseded
from tests.operate.control.live_server import until
from tests.postgres import PASSWORD, Postgres


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return postgres_server.cleaned()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store(url, busy_ms=50)
    yield opened
    opened.close()


def test_a_look_is_consistent_however_much_is_written_meanwhile(store: Store, url: str) -> None:
    with store.reading() as connection:
        before = connection.execute(text("SELECT epoch FROM lead")).scalar()
        store.take_lead()
        assert connection.execute(text("SELECT epoch FROM lead")).scalar() == before == 0
        with pytest.raises(Exception, match="read-only"):
            connection.execute(update(tables.lead).values(epoch=9))
    store.check_lead(1)


def test_a_leader_whose_transaction_began_before_the_takeover_commits_nothing_after_it(
    store: Store, url: str, postgres_server: Postgres
) -> None:
    """It waits for the lease row behind the one who takes over, and sees who leads; and nobody takes over in the midst of it."""
    old, other, slow, impatient = store.take_lead(), Store(url), Store(url), Store(url, busy_ms=50)
    with store.leading(old), pytest.raises(StoreUnavailable, match="lock"):
        impatient.take_lead()
    with ThreadPoolExecutor(1) as pool:
        with other.leading(old) as taking:
            late = pool.submit(slow.outbox_done, old, 1)
            until(lambda: postgres_server.waiting(url) or late.done())
            assert not late.done()
            taking.execute(update(tables.lead).values(epoch=old + 1))
        with pytest.raises(Superseded, match=f"epoch {old} was superseded by {old + 1}"):
            late.result()
    for one in (other, slow, impatient):
        one.close()


def test_a_leader_that_is_stopped_in_a_transaction_is_ended_by_the_database_and_its_commit_never_lands(
    store: Store, url: str
) -> None:
    """As by SIGSTOP: it holds the lease row, says nothing, and wants to commit when it wakes."""
    assert IDLE_MS < LEASE_MS
    epoch, patient = store.take_lead(), Store(url, busy_ms=10 * IDLE_MS)
    with pytest.raises(StoreUnavailable), store.leading(epoch) as stopped:
        stopped.execute(text("INSERT INTO outbox (entry) VALUES ('late')"))
        assert patient.take_lead() == epoch + 1
    assert patient.outbox_size() == 0
    with pytest.raises(Superseded):
        store.outbox_done(epoch, 1)
    patient.close()


def test_a_server_that_is_restarted_is_away_and_then_there_again(postgres_server: Postgres, store: Store) -> None:
    epoch = store.take_lead()
    with pytest.raises(StoreUnavailable), store.leading(epoch):
        postgres_server.stop(signal.SIGINT)
    with pytest.raises(StoreUnavailable):
        store.load()
    with pytest.raises(SetupError, match=r"database is 'postgresql://phalanx:\*\*\*@.*start it, or mend the address"):
        raise _opened(postgres_server.url("postgres"))
    postgres_server.start()
    store.check_lead(epoch)
    store.outbox_done(epoch, 1)


def test_a_replica_that_only_reads_is_away_for_a_writer(store: Store, url: str, postgres_server: Postgres) -> None:
    name = url.rpartition("/")[2]
    postgres_server.say(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        replica = Store(url)
        with pytest.raises(StoreUnavailable, match="read-only"):
            replica.take_lead()
        replica.close()
    finally:
        postgres_server.say(f"ALTER DATABASE {name} RESET default_transaction_read_only")


def test_what_it_refuses_for_what_we_said_is_a_bug_without_values(store: Store) -> None:
    with pytest.raises(Bug, match=r"refused a statement of ours.*no_such_table") as refused, store.reading() as connection:
        connection.execute(text("SELECT * FROM no_such_table WHERE x = :secret"), {"secret": PASSWORD})
    assert PASSWORD not in str(refused.value)
    with pytest.raises(Bug, match=r"null value in column") as refused, store.leading(store.take_lead()) as connection:
        connection.execute(text("INSERT INTO nodes (id, record) VALUES ('a', 'canary')"))
    assert "canary" not in str(refused.value)


def _opened(url: str) -> SetupError:
    with pytest.raises(SetupError) as refused:
        Store(url)
    assert "canary" not in str(refused.value).replace("***", "")
    assert PASSWORD not in str(refused.value)
    error = refused.value
    return SetupError(f"{error.field} is {error.value!r}", None, error.fix)


@pytest.mark.parametrize(
    ("user", "password", "database", "fix"),
    [
        ("phalanx", "canary-wrong", "postgres", "put its right password into PHALANX_DATABASE"),
        ("nobody-here", "canary", "postgres", "PHALANX_DATABASE"),
        ("phalanx", PASSWORD, "none_of_that_name", "make that database first"),
    ],
    ids=["password", "user", "database"],  # the password is another one in each process that collects this
)
def test_who_is_not_let_in_is_told_what_to_mend(
    postgres_server: Postgres, user: str, password: str, database: str, fix: str
) -> None:
    with pytest.raises(SetupError, match=fix):
        raise _opened(postgres_server.url(database, user, password))


def test_a_user_who_may_make_no_tables_and_a_database_of_others_are_named(postgres_server: Postgres) -> None:
    name = postgres_server.empty().rpartition("/")[2]
    postgres_server.say("DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN PASSWORD 'canary-guest'")
    with pytest.raises(SetupError, match="GRANT CREATE, USAGE ON SCHEMA public"):
        raise _opened(postgres_server.url(name, "guest", "canary-guest"))
    postgres_server.say("CREATE TABLE jobs (mine int)", database=name)
    with pytest.raises(SetupError, match="tables that are not of Phalanx"):
        raise _opened(postgres_server.url(name))


def test_a_database_that_is_not_of_utf_8_is_refused(postgres_server: Postgres) -> None:
    postgres_server.say("DROP DATABASE IF EXISTS latin", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(SetupError, match="ENCODING 'UTF8'"):
        raise _opened(postgres_server.url("latin"))


def test_stores_that_open_an_empty_database_at_once_migrate_it_once(postgres_server: Postgres) -> None:
    url = postgres_server.empty()
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: Store(url), range(4)))
    assert sorted(store.take_lead() for store in stores) == [1, 2, 3, 4]
    assert len({store.identity() for store in stores}) == 1
    for store in stores:
        store.close()


def test_a_newer_schema_is_refused_by_name(postgres_server: Postgres) -> None:
    url = postgres_server.empty()
    Store(url).close()
    postgres_server.say("UPDATE alembic_version SET version_num = '9999'", database=url.rpartition("/")[2])
    with pytest.raises(SetupError, match=r"newer version of phalanx \(schema 9999\)"):
        raise _opened(url)
