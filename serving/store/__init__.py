"""What the service remembers: SQLite by default, PostgreSQL by its address."""

from serving.store.engine import Store

__all__ = ["Store"]
