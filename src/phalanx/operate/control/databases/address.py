"""A PostgreSQL database's URL: checked before anything is connected, and shown without its password. Pure."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from phalanx.core.errors import SetupError

EXAMPLE: Final = "postgresql://USER@HOST/DATABASE"
_SCHEMES: Final = ("postgresql", "postgres")
_OURS: Final = frozenset({"application_name", "connect_timeout", "options", "tcp_user_timeout", "autocommit", "row_factory"})
"""Of the connection's settings those that `postgres` chooses."""


def is_postgres(text: str) -> bool:
    """Whether it means PostgreSQL, well written or not."""
    return text.partition("://")[0].partition("+")[0].lower() in _SCHEMES and "://" in text


def parsed(text: str, field: str) -> URL:
    """The URL, as SQLAlchemy has it, with psycopg as its driver. Raises SetupError in the name of `field`."""
    scheme, separator, _ = text.partition("://")
    if not separator or scheme.partition("+")[0].lower() not in _SCHEMES:
        raise SetupError(field, masked(text), f"is no PostgreSQL URL; write {EXAMPLE}")
    if scheme.lower() not in _SCHEMES:
        raise SetupError(field, masked(text), f"names a driver; Phalanx brings its own: write {EXAMPLE}")
    try:
        url = make_url(f"postgresql+psycopg{text[len(scheme) :]}")
    except (ArgumentError, ValueError) as error:
        raise SetupError(
            field, masked(text), f"cannot be read; write {EXAMPLE}, with '@', ':' and '/' in names as %40, %3A, %2F"
        ) from error
    _check(url, field)
    secret = url.query.get("password")
    if isinstance(secret, str) and url.username:  # without one SQLAlchemy writes no password
        url = url.difference_update_query(["password"]).set(password=secret)
    return url


def _check(url: URL, field: str) -> None:
    if not url.database:
        raise SetupError(field, shown(url), f"names no database; write {EXAMPLE}")
    ours = sorted(_OURS & url.query.keys())
    if ours:
        raise SetupError(field, shown(url), f"sets {ours[0]}, which Phalanx sets itself; leave it out")


def shown(url: URL) -> str:
    """For people: the password as ***, wherever it stands, and no driver."""
    query: Mapping[str, object] = url.query
    hidden = {name: "***" for name in query if "password" in name}
    return url.set(drivername="postgresql").update_query_dict(hidden).render_as_string(hide_password=True)


def plain(url: URL) -> str:
    """With the password: to be kept where its owner alone reads it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def masked(text: str) -> str:
    """Of a text that may be no URL at all: nothing that may be a password is left."""
    scheme, separator, rest = text.partition("://")
    user, at, place = rest.rpartition("@")
    place = place.partition("?")[0]
    if not separator:
        return text if "@" not in text and "password" not in text else "(not shown)"
    return f"{scheme}://{user.partition(':')[0]}{':***' if ':' in user else ''}{at}{place}"
