"""First tables"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cluster",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("links", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "idempotency",
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    with op.batch_alter_table("idempotency", schema=None) as batch_op:
        batch_op.create_index("ix_idempotency_created_at", ["created_at"], unique=False)

    op.create_table(
        "model_events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("version", sa.String(length=200), nullable=False),
        sa.Column("event", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=220), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "placements",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=200), nullable=False),
        sa.Column("iterations", sa.Double(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("node", sa.String(length=220), nullable=True),
        sa.Column("gpu", sa.String(length=200), nullable=True),
        sa.Column("decision", sa.JSON(), nullable=False),
        sa.Column("model_version", sa.String(length=200), nullable=False),
        sa.Column("cluster_version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("placements", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_placements_sequence"), ["sequence"], unique=False)
        batch_op.create_index(batch_op.f("ix_placements_state"), ["state"], unique=False)

    op.create_table(
        "tenants",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("node", sa.String(length=220), nullable=False),
        sa.Column("gpu", sa.String(length=200), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=200), nullable=False),
        sa.Column("iterations_left", sa.Double(), nullable=False),
        sa.Column("placement_id", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("tenants", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tenants_node"), ["node"], unique=False)
        batch_op.create_index(batch_op.f("ix_tenants_placement_id"), ["placement_id"], unique=False)

    op.create_table(
        "tokens",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "workloads",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("graph", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_table(
        "observations",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("device", sa.String(length=200), nullable=False),
        sa.Column("sharing", sa.String(length=16), nullable=False),
        sa.Column("jobs", sa.JSON(), nullable=False),
        sa.Column("member", sa.Integer(), nullable=False),
        sa.Column("step_time_s", sa.Double(), nullable=False),
        sa.Column("predicted_step_time_s", sa.Double(), nullable=False),
        sa.Column("predicted_lower_s", sa.Double(), nullable=False),
        sa.Column("predicted_upper_s", sa.Double(), nullable=False),
        sa.Column("error_ratio", sa.Double(), nullable=False),
        sa.Column("model_version", sa.String(length=200), nullable=False),
        sa.Column("observed_at", sa.Double(), nullable=False),
        sa.Column("placement_id", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["placement_id"], ["placements.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("observations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_observations_observed_at"), ["observed_at"], unique=False)
