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
    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection).get_current_heads()
    for revision in current:
        try:
            scripts.get_revision(revision)
        except CommandError as error:
            raise NewerSchema(revision) from error
    if set(current) != set(scripts.get_heads()):
        command.upgrade(config, "head")


def revision(connection: Connection) -> str:
    """The schema's, '' where there is none."""
    return "".join(MigrationContext.configure(connection).get_current_heads())
