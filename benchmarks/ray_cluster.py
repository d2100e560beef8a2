"""A Ray cluster of several node processes on this machine, for benchmarks that kill one of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Ray gives a node process 30 s to start, which a busy machine may miss.
_ATTEMPTS = 8


def is_installed() -> bool:
    """Whether Ray is installed; prints a note if not."""
    if find_spec("ray") is None:
        print("skipped: ray is not installed (pip install 'cotenant[ray]')")
        return False
    return True


@contextmanager
def ray_cluster(nodes: int) -> Iterator[Any]:
    """Start `nodes` node processes with one CPU each; `others` of the yielded cluster are all nodes but the
    head."""
    # Node processes and their workers inherit these variables.
    os.environ |= {
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        # On a busy machine Ray's own agents need more than their 15 s.
        "RAY_agent_register_timeout_ms": "300000",
        "RAY_health_check_timeout_ms": "60000",
        "RAY_raylet_start_wait_time_s": "300",
    }
    import ray
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster()
    try:
        made = [_node(cluster) for _ in range(nodes)]
        cluster.others = made[1:]
        cluster.wait_for_nodes(timeout=300)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def _node(cluster: Any) -> Any:
    for left in reversed(range(_ATTEMPTS)):
        try:
            return cluster.add_node(num_cpus=1, include_dashboard=False)
        except Exception as error:
            if not left:
                raise
            print(f"a node did not come up, once more: {error}", file=sys.stderr)
    raise AssertionError
