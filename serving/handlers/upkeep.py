"""What the service does by itself from time to time."""

from __future__ import annotations

import time

from serving.handlers.idempotency import forget_old
from serving.handlers.placements import expire
from serving.service import Service


def upkeep(service: Service) -> int:
    """Expire unconfirmed placements and drop old idempotency keys. Returns how many placements expired."""
    now = time.time()
    with service.store.write() as session:
        forget_old(session, now)
        return expire(session, now)
