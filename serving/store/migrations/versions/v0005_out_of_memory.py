"""Sets that ran out of memory, which have no step time"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("observations") as observations:
        for name in ("step_time_s", "error_ratio"):
            observations.alter_column(name, existing_type=sa.Double(), nullable=True)
