"""Teams, users, their tokens, and the audit log. Jobs and secrets that there were are the platform's own."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Adds eight tables; jobs and secrets get a team."""
    _who_there_is()
    _what_opens_the_door()
    _what_was_done()
    op.add_column("jobs", sa.Column("team", sa.String(64), nullable=False, server_default=""))
    op.create_index("ix_jobs_team", "jobs", ["team"])
    op.create_index("ix_artifacts_sha256", "artifacts", ["sha256"])
    _whose_secrets()


def _who_there_is() -> None:
    op.create_table(
        "organisations",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_organisations"),
    )
    op.create_table(
        "users",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("platform", sa.Boolean, nullable=False),
        sa.Column("created_ms", BIG, nullable=False),
        sa.Column("removed_ms", BIG),
        sa.PrimaryKeyConstraint("name", name="pk_users"),
    )
    op.create_table(
        "teams",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("created_ms", BIG, nullable=False),
        sa.Column("removed_ms", BIG),
        sa.PrimaryKeyConstraint("name", name="pk_teams"),
    )
    op.create_table(
        "members",
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("person", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("team", "person", name="pk_members"),
        sa.ForeignKeyConstraint(["team"], ["teams.name"], name="fk_members_team"),
        sa.ForeignKeyConstraint(["person"], ["users.name"], name="fk_members_person"),
    )
    op.create_table(
        "identities",
        sa.Column("issuer", sa.String(255), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("person", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("issuer", "subject", name="pk_identities"),
        sa.ForeignKeyConstraint(["person"], ["users.name"], name="fk_identities_person"),
    )


def _what_opens_the_door() -> None:
    op.create_table(
        "access_tokens",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("created_ms", BIG, nullable=False),
        sa.Column("expires_ms", BIG, nullable=False),
        sa.Column("used_ms", BIG),
        sa.PrimaryKeyConstraint("sha256", name="pk_access_tokens"),
        sa.UniqueConstraint("id", name="uq_access_tokens_id"),
        sa.ForeignKeyConstraint(["owner"], ["users.name"], name="fk_access_tokens_owner"),
    )
    op.create_index("ix_access_tokens_owner", "access_tokens", ["owner"])


def _what_was_done() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", BIG, nullable=False, autoincrement=True),
        sa.Column("at_ms", BIG, nullable=False),
        sa.Column("who", sa.String(64), nullable=False),
        sa.Column("token", sa.String(16), nullable=False),
        sa.Column("what", sa.String(32), nullable=False),
        sa.Column("target", sa.String(255), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("detail", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at_ms", "audit", ["at_ms"])
    op.create_table(
        "blob_senders",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("person", sa.String(64), nullable=False),
        sa.Column("at_ms", BIG, nullable=False),
        sa.PrimaryKeyConstraint("sha256", "person", name="pk_blob_senders"),
    )


def _whose_secrets() -> None:
    """Another table: not every database gives one another primary key."""
    columns = ("name", "sealed", "created_ms")
    made = op.create_table(
        "team_secrets",
        sa.Column("team", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("sealed", sa.Text, nullable=False),
        sa.Column("created_ms", BIG, nullable=False),
        sa.PrimaryKeyConstraint("team", "name", name="pk_team_secrets"),
    )
    old = sa.table("secrets", *(sa.column(name) for name in columns))
    op.execute(made.insert().from_select(["team", *columns], sa.select(sa.literal(""), *(old.c[name] for name in columns))))
    op.drop_table("secrets")
