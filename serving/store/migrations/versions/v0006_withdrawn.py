"""Withdrawn observations; tenants by their job id

Each part only if it is missing: for a while the fifth revision made some of them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    bind = op.get_bind()
    present = sa.inspect(bind)
    if "ix_tenants_job_id" not in {index["name"] for index in present.get_indexes("tenants")}:
        op.create_index("ix_tenants_job_id", "tenants", ["job_id"])
    if not present.has_table("counters"):
        op.create_table(
            "counters",
            sa.Column("name", sa.String(40), primary_key=True),
            sa.Column("value", sa.Integer(), nullable=False),
        )
    if bind.dialect.name == "sqlite":
        query = sa.text("SELECT sql FROM sqlite_master WHERE name = 'observations'")
        if "AUTOINCREMENT" not in bind.execute(query).scalar_one():
            # SQLite would give the number of a withdrawn observation to the next one, and a repeated DELETE would
            # delete that.
            unique = {"sqlite_autoincrement": True}
            with op.batch_alter_table("observations", table_kwargs=unique, recreate="always"):
                pass
