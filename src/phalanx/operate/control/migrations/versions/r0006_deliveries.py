"""Deliveries to webhooks that were made or given up: the newest of each."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds a table."""
    op.create_table(
        "deliveries",
        sa.Column("seq", BIG, nullable=False, autoincrement=True),
        sa.Column("notice", BIG, nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("webhook", sa.Text, nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("ended_ms", BIG, nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("detail", sa.String(200), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_deliveries"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_deliveries_webhook", "deliveries", ["team", "webhook", "seq"])
