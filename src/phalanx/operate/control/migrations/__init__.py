"""The database's schema, revision by revision; run in process by `upgrade`. Knows the store's tables and nothing else."""

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


def upgrade(connection: Connection) -> None:
    """Brings the schema to this version's, inside the transaction of `connection`. Raises NewerSchema."""
    config = _config()
    config.attributes["connection"] = connection
    if revision(connection) != newest():
        command.upgrade(config, "head")


def revision(connection: Connection) -> str:
    """The schema's, '' where there is none. Raises NewerSchema."""
    scripts = ScriptDirectory.from_config(_config())
    current = MigrationContext.configure(connection).get_current_heads()
    for known in current:
        try:
            scripts.get_revision(known)
        except CommandError as error:
            raise NewerSchema(known) from error
    return "".join(current)


def newest() -> str:
    """The revision of this version's schema."""
    return "".join(ScriptDirectory.from_config(_config()).get_heads())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    return config
