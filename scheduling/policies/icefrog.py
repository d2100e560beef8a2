"""IceFrog: GPUs and frozen layers of all jobs by effective progress, in rounds of 60 s.

Also its allocator without freezing, and Pollux's allocator with it. Gao et al., "IceFrog", IEEE TPDS 36(6),
2025 (abstract); the forms are ours, see `scheduling.elastic`. GPU types are treated as equal.
"""

from __future__ import annotations

from scheduling.elastic.jobs import IceFrogConfig
from scheduling.elastic.policy import icefrog, icefrog_unfrozen, pollux_freezing

# Weighted by the inverse of the remaining time, for the mean completion time.
CONFIG = IceFrogConfig(shortness=1.0)

POLICY = icefrog(CONFIG)
UNFROZEN = icefrog_unfrozen(CONFIG)
POLLUX = pollux_freezing()
