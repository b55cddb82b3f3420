"""How the fleet is shared, and what each queue has used. Usage counts from this revision on: the log before it is not added up."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Adds two tables."""
    op.create_table(
        "usage",
        sa.Column("queue", sa.String(64), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("queue", name="pk_usage"),
    )
    op.create_table(
        "policy",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_policy"),
    )
