"""Memory and utilisation of jobs observed alone"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("observations") as observations:
        observations.add_column(sa.Column("memory_bytes", sa.Double(), nullable=True))
        observations.add_column(sa.Column("utilization_ratio", sa.Double(), nullable=True))
