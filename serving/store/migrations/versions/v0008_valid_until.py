"""Until when the stored cluster is known to be true"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cluster", sa.Column("valid_until", sa.Double(), nullable=True))
