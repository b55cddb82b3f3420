"""The database's tables. Rows hold whole records as JSON next to the columns that queries need; `migrations` makes them."""

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, MetaData, String, Table, Text

BIG: Final = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits on every database; SQLite counts rows by itself only for a plain INTEGER."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

events = Table(
    "events",
    metadata,
    Column("seq", BIG, primary_key=True, autoincrement=False),
    Column("at_ms", BIG, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("job", String(80)),
    Column("body", Text, nullable=False),
    Index("ix_events_job", "job", "seq"),
)
"""The log; only ever appended to."""

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("sequence", BIG, nullable=False, unique=True),
    Column("state", String(16), nullable=False),
    Column("record", Text, nullable=False),
    Column("team", String(64), nullable=False, server_default="", index=True),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", String(96), primary_key=True),
    Column("job", ForeignKey("jobs.id"), nullable=False, index=True),
    Column("record", Text, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", String(255), primary_key=True),
    Column("up", Boolean, nullable=False),
    Column("record", Text, nullable=False),
)

models = Table(
    "models",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("attempt", ForeignKey("attempts.id"), nullable=False, unique=True),
    Column("record", Text, nullable=False),
)
"""An attempt registers at most one version."""

usage = Table("usage", metadata, Column("queue", String(64), primary_key=True), Column("record", Text, nullable=False))
"""What attempts of each queue's jobs used that have ended."""

policy = Table("policy", metadata, Column("name", String(16), primary_key=True), Column("record", Text, nullable=False))
"""How the fleet is shared; one row, `fleet`, once somebody set it."""

outbox = Table(
    "outbox",
    metadata,
    Column("seq", BIG, primary_key=True, autoincrement=True),
    Column("entry", Text, nullable=False),
    sqlite_autoincrement=True,
)
"""What the tracker has yet to take over. A number is never used again, so an entry told twice is known as the same."""

tokens = Table(
    "tokens",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("name", String(64), nullable=False),
    Column("created_ms", BIG, nullable=False),
)

streams = Table(
    "streams",
    metadata,
    Column("attempt", ForeignKey("attempts.id"), primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("records_offset", BIG, nullable=False),
)
"""Up to where a rank's record file was read for facts."""

submits = Table(
    "submits",
    metadata,
    Column("key", String(255), primary_key=True),
    Column("job", ForeignKey("jobs.id"), nullable=False),
)
"""Keys that make a repeated submit find its first job."""

secrets = Table(
    "team_secrets",
    metadata,
    Column("team", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("sealed", Text, nullable=False),
    Column("created_ms", BIG, nullable=False),
)
"""Values are sealed with the home's key; the database alone opens none."""

notices = Table(
    "notices",
    metadata,
    Column("seq", BIG, primary_key=True, autoincrement=True),
    Column("webhook", Text, nullable=False),
    Column("entry", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("due_ms", BIG, nullable=False),
    Index("ix_notices_due", "webhook", "due_ms"),
    sqlite_autoincrement=True,
)
"""Webhook deliveries not yet made or given up."""

deliveries = Table(
    "deliveries",
    metadata,
    Column("seq", BIG, primary_key=True, autoincrement=True),
    Column("notice", BIG, nullable=False),
    Column("team", String(64), nullable=False),
    Column("webhook", Text, nullable=False),
    Column("entry", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("ended_ms", BIG, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("detail", String(200), nullable=False),
    Index("ix_deliveries_webhook", "team", "webhook", "seq"),
    sqlite_autoincrement=True,
)
"""Those that were, in the order in which they ended; the newest alone. notice: the number that it had while it waited."""

artifacts = Table(
    "artifacts",
    metadata,
    Column("attempt", ForeignKey("attempts.id"), primary_key=True),
    Column("name", String(1024), primary_key=True),
    Column("sha256", String(64), nullable=False, index=True),
    Column("size_bytes", BIG, nullable=False),
    Column("at_ms", BIG, nullable=False),
)
"""Newest content of each file that an attempt's ranks gave; every attempt's stay as versions."""

join_tokens = Table(
    "join_tokens",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("created_ms", BIG, nullable=False),
    Column("expires_ms", BIG, nullable=False),
    Column("used_by", String(255)),
)
"""One use each."""

node_credentials = Table(
    "node_credentials",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("node", String(255), nullable=False, unique=True),
    Column("created_ms", BIG, nullable=False),
)
"""What a node that joined may connect with, as itself alone."""

meta = Table("meta", metadata, Column("key", String(32), primary_key=True), Column("value", BIG, nullable=False))
"""`sequence`: number of the last job. `identity`: which database this is, also after it was copied elsewhere. `trusting`: 1 where
its teams were said to trust each other."""

lead = Table(
    "lead",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("epoch", BIG, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_ms", BIG, nullable=False),
)
"""Who leads; one row, `leader`, that is always there. expires_ms: on this database's clock, 0 without a lease."""

organisations = Table(
    "organisations",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(100), nullable=False),
)
"""One row once it has a name: a home is one organisation's."""

users = Table(
    "users",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("platform", Boolean, nullable=False),
    Column("created_ms", BIG, nullable=False),
    Column("removed_ms", BIG),
)
"""A name is never given twice: jobs and the audit log go on naming who left."""

teams = Table(
    "teams",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("created_ms", BIG, nullable=False),
    Column("removed_ms", BIG),
)
"""Likewise: whoever made a team of an old name would get the old one's jobs."""

members = Table(
    "members",
    metadata,
    Column("team", ForeignKey("teams.name"), primary_key=True),
    Column("person", ForeignKey("users.name"), primary_key=True),
    Column("role", String(16), nullable=False),
)

access_tokens = Table(
    "access_tokens",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("id", String(16), nullable=False, unique=True),
    Column("name", String(64), nullable=False),
    Column("owner", ForeignKey("users.name"), nullable=False, index=True),
    Column("scope", String(16), nullable=False),
    Column("team", String(64), nullable=False),
    Column("created_ms", BIG, nullable=False),
    Column("expires_ms", BIG, nullable=False),
    Column("used_ms", BIG),
)
"""What people and their programs show. `tokens` are the home's own two."""

identities = Table(
    "identities",
    metadata,
    Column("issuer", String(255), primary_key=True),
    Column("subject", String(255), primary_key=True),
    Column("person", ForeignKey("users.name"), nullable=False),
)
"""Whom an OpenID provider means: a name there may change hands, its subject does not."""

blob_senders = Table(
    "blob_senders",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("person", String(64), primary_key=True),
    Column("at_ms", BIG, nullable=False),
)
"""Who sent a blob of late: until a job of theirs names it, nothing else says that they have its bytes."""

audit = Table(
    "audit",
    metadata,
    Column("seq", BIG, primary_key=True, autoincrement=True),
    Column("at_ms", BIG, nullable=False, index=True),
    Column("who", String(64), nullable=False),
    Column("token", String(16), nullable=False),
    Column("what", String(32), nullable=False),
    Column("target", String(255), nullable=False),
    Column("address", String(64), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("detail", String(500), nullable=False),
    sqlite_autoincrement=True,
)
"""Who changed what; only ever appended to."""
