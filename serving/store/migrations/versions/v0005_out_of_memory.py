"""Sets that ran out of memory, which have no step time; withdrawn observations; tenants by their job id"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite would give the number of a withdrawn observation to the next one, and a repeated DELETE would delete that.
    unique = {"sqlite_autoincrement": True}
    with op.batch_alter_table("observations", table_kwargs=unique) as observations:
        for name in ("step_time_s", "error_ratio"):
            observations.alter_column(name, existing_type=sa.Double(), nullable=True)
    op.create_index("ix_tenants_job_id", "tenants", ["job_id"])
    op.create_table(
        "counters",
        sa.Column("name", sa.String(40), primary_key=True),
        sa.Column("value", sa.Integer(), nullable=False),
    )
