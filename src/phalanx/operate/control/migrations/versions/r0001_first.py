"""The first schema: the log, what is true now, the outbox, tokens, stream offsets, submit keys, leadership."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes every table."""
    _log_and_records()
    _beside_the_log()


def _log_and_records() -> None:
    op.create_table(
        "events",
        sa.Column("seq", BIG, nullable=False, autoincrement=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("job", sa.String(80)),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_events"),
    )
    op.create_index("ix_events_job", "events", ["job", "seq"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("sequence", BIG, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("sequence", name="uq_jobs_sequence"),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(96), nullable=False),
        sa.Column("job", sa.String(80), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_attempts_job"),
    )
    op.create_index("ix_attempts_job", "attempts", ["job"])
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("up", sa.Boolean, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
    )
    op.create_table(
        "models",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("attempt", sa.String(96), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name="pk_models"),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.id"], name="fk_models_attempt"),
        sa.UniqueConstraint("attempt", name="uq_models_attempt"),
    )


def _beside_the_log() -> None:
    op.create_table(
        "outbox",
        sa.Column("seq", BIG, nullable=False, autoincrement=True),
        sa.Column("entry", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_outbox"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "tokens",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created_ms", BIG, nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_tokens"),
    )
    op.create_table(
        "streams",
        sa.Column("attempt", sa.String(96), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("records_offset", BIG, nullable=False),
        sa.PrimaryKeyConstraint("attempt", "rank", name="pk_streams"),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.id"], name="fk_streams_attempt"),
    )
    op.create_table(
        "submits",
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("job", sa.String(80), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_submits"),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_submits_job"),
    )
    op.create_table(
        "meta",
        sa.Column("key", sa.String(32), nullable=False),
        sa.Column("value", BIG, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_meta"),
    )
