"""The database's schema, revision by revision; run in process by `upgrade`. Knows the store's tables and nothing else."""

from functools import cache
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection

_SCRIPTS: Final = "phalanx.operate.control:migrations"


class NewerSchema(Exception):
    """The database was made by a later version; `revision` is not known here."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        super().__init__(revision)


def upgrade(connection: Connection, to: str = "") -> None:
    """Brings the schema to this version's, or up to an older one, inside the transaction of `connection`. Raises NewerSchema."""
    config = _config()
    config.attributes["connection"] = connection
    _check_known(to)
    if revision(connection) != (to or newest()):
        command.upgrade(config, to or "head")


def revision(connection: Connection) -> str:
    """The schema's, '' where there is none. Raises NewerSchema."""
    current = "".join(MigrationContext.configure(connection).get_current_heads())
    _check_known(current)
    return current


def newest() -> str:
    """The revision of this version's schema."""
    return "".join(_scripts().get_heads())


def _check_known(revision: str) -> None:
    try:
        _scripts().get_revision(revision or "base")
    except CommandError as error:
        raise NewerSchema(revision) from error


@cache
def _scripts() -> ScriptDirectory:
    """Read once a process: each reading compiles every revision, four times an opened database."""
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    return config
