"""What the service remembers: SQLite by default, PostgreSQL by its address."""

from serving.store.engine import Store, check_exists

__all__ = ["Store", "check_exists"]
