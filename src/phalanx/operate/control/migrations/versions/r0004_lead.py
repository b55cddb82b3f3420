"""Who leads, by a lease that ends by itself; and a number by which a database is known wherever it is copied to."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
IDENTITY_BITS = 62


def upgrade() -> None:
    """Adds a table with one row, which takes the epoch over."""
    lead = op.create_table(
        "lead",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("epoch", BIG, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_ms", BIG, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_lead"),
    )
    meta = sa.table("meta", sa.column("key", sa.String), sa.column("value", BIG))
    connection = op.get_bind()
    epoch = connection.execute(sa.select(meta.c.value).where(meta.c.key == "epoch")).scalar() or 0
    connection.execute(sa.insert(lead).values(name="leader", epoch=epoch, holder="", expires_ms=0))
    connection.execute(sa.delete(meta).where(meta.c.key == "epoch"))
    connection.execute(sa.insert(meta).values(key="identity", value=secrets.randbits(IDENTITY_BITS)))
