"""Observations by their placement: deleting a placement looks for them"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_observations_placement_id", "observations", ["placement_id"])
