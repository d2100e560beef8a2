"""On which GPU a job says that it runs"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # With a default, because a service of an earlier version may still write rows.
    op.add_column("tenants", sa.Column("gpu_uuid", sa.String(100), nullable=False, server_default=""))
