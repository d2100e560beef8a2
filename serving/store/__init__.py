"""The service's store: SQLite by default, or PostgreSQL."""

from serving.store.engine import Store, check_exists

__all__ = ["Store", "check_exists"]
