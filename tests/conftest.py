"""What holds for every test: one thread a process, and no bound of time that a busy machine can break."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Before torch and numpy are imported: two workers with two spinning threads each take several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
