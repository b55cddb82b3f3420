"""Run by Alembic for each command. It works on the connection it is given, inside its transaction, and writes no log set-up."""

from alembic import context

from phalanx.operate.control.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
