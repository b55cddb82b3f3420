"""Secrets, webhook deliveries, artifacts, and the tokens of nodes that join."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds five tables."""
    _what_jobs_use()
    _who_may_join()


def _what_jobs_use() -> None:
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("sealed", sa.Text, nullable=False),
        sa.Column("created_ms", BIG, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_secrets"),
    )
    op.create_table(
        "notices",
        sa.Column("seq", BIG, nullable=False, autoincrement=True),
        sa.Column("webhook", sa.Text, nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("due_ms", BIG, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_notices"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_notices_due", "notices", ["webhook", "due_ms"])
    op.create_table(
        "artifacts",
        sa.Column("attempt", sa.String(96), nullable=False),
        sa.Column("name", sa.String(1024), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size_bytes", BIG, nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.PrimaryKeyConstraint("attempt", "name", name="pk_artifacts"),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.id"], name="fk_artifacts_attempt"),
    )


def _who_may_join() -> None:
    op.create_table(
        "join_tokens",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_ms", BIG, nullable=False),
        sa.Column("expires_ms", BIG, nullable=False),
        sa.Column("used_by", sa.String(255)),
        sa.PrimaryKeyConstraint("sha256", name="pk_join_tokens"),
    )
    op.create_table(
        "node_credentials",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("created_ms", BIG, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_node_credentials"),
        sa.UniqueConstraint("node", name="uq_node_credentials_node"),
    )
