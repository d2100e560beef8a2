"""Alembic's entry point: runs the migrations on the connection passed by `Store`, which commits them."""

from alembic import context

from serving.store.tables import Base

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
