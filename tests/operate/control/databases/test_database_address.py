"""A database's URL: read, refused in one clear error, and never shown with its password."""

import pytest

from phalanx.core.errors import SetupError
from phalanx.operate.control.databases.address import is_postgres, masked, parsed, plain, shown

SECRET = "s3cr3t-Canary"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://ada:{SECRET}@db/phalanx",
        f"postgres://ada:{SECRET}@db:5433/phalanx?sslmode=require",
        f"postgresql://ada@db/phalanx?password={SECRET}",
        f"postgresql://ada@/phalanx?host=/run/pg&password={SECRET}&sslpassword={SECRET}",
    ],
)
def test_the_driver_is_ours_and_the_password_is_kept_and_not_shown(text: str) -> None:
    url = parsed(text, "--database")
    assert (url.drivername, url.password, url.database) == ("postgresql+psycopg", SECRET, "phalanx")
    assert "password" not in url.query
    assert shown(url).startswith("postgresql://")
    assert SECRET not in shown(url) + masked(text)
    assert parsed(plain(url), "again") == url


def test_a_password_without_a_user_stays_where_it_was() -> None:
    url = parsed(f"postgresql:///phalanx?password={SECRET}", "--database")
    assert SECRET not in shown(url)
    assert parsed(plain(url), "again") == url
    assert url.query["password"] == SECRET


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (f"mysql://ada:{SECRET}@db/x", "no PostgreSQL URL"),
        (f"ada:{SECRET}@db/x", "no PostgreSQL URL"),
        (f"postgresql+psycopg2://ada:{SECRET}@db/x", "names a driver"),
        (f"postgresql://ada:{SECRET}@db", "names no database"),
        (f"postgresql://ada:{SECRET}@db:port/x", "cannot be read"),
        (f"postgresql://ada:{SECRET}@db/x?options=-c%20fsync=off", "sets options"),
    ],
)
def test_what_is_no_url_of_ours_is_one_error_without_the_password(text: str, fix: str) -> None:
    with pytest.raises(SetupError, match=fix) as refused:
        parsed(text, "PHALANX_DATABASE")
    assert refused.value.field == "PHALANX_DATABASE"
    assert SECRET not in str(refused.value) + repr(refused.value)


@pytest.mark.parametrize(
    ("text", "does"),
    [("postgresql://h/d", True), ("postgres+x://h/d", True), ("sqlite:///p", False), ("/home/postgresql", False)],
)
def test_a_path_is_not_taken_for_postgresql(text: str, does: bool) -> None:
    assert is_postgres(text) is does
