"""Step times predicted with the earlier observations"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("observations") as observations:
        observations.add_column(sa.Column("corrected_step_time_s", sa.Double(), nullable=True))
