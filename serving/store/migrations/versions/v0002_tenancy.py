"""Revisions of nodes, slowdown budgets, sessions, audit log, expiry of tokens"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("cluster") as cluster:
        cluster.add_column(sa.Column("changes", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("nodes") as nodes:
        nodes.add_column(sa.Column("revision", sa.Integer(), nullable=False, server_default="0"))
        nodes.add_column(sa.Column("reported_at", sa.Double(), nullable=False, server_default="0"))
        nodes.add_column(sa.Column("removed", sa.Boolean(), nullable=False, server_default=sa.false()))
        nodes.create_index("ix_nodes_revision", ["revision"])
    with op.batch_alter_table("tenants") as tenants:
        tenants.add_column(sa.Column("max_slowdown", sa.Double(), nullable=True))
        tenants.add_column(sa.Column("model", sa.String(length=200), nullable=False, server_default=""))
        tenants.create_index("ix_tenants_model", ["model"])
    # A SPEC is the model's name, with any options after the last colon.
    bind = op.get_bind()
    rows = bind.execute(sa.text("SELECT id, job FROM tenants")).all()
    for number, job in rows:
        model = job.rpartition(":")[0] if "=" in job else job
        bind.execute(
            sa.text("UPDATE tenants SET model = :model WHERE id = :id"), {"model": model, "id": number}
        )
    with op.batch_alter_table("placements") as placements:
        placements.add_column(sa.Column("max_slowdown", sa.Double(), nullable=True))
    with op.batch_alter_table("tokens") as tokens:
        tokens.add_column(sa.Column("expires_at", sa.Double(), nullable=True))
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("token", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index("ix_sessions_token", "sessions", ["token"])
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("caller", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=300), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
