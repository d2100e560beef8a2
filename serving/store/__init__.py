"""The service's store: SQLite by default, or PostgreSQL."""

from serving.store.engine import Store, check_exists
from serving.store.failures import StoreError

__all__ = ["Store", "StoreError", "check_exists"]
