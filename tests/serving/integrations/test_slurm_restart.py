"""Jobs that are held while slurmctld restarts."""

from __future__ import annotations

from serving.integrations.ask import ServiceClient
from serving.integrations.slurm import decide
from serving.integrations.slurm_state import HELD
from tests.serving.integrations.test_slurm import CONFIG, held, recorded, service

__all__ = ["service"]


def test_nodes_that_have_not_reported_their_shards_are_waited_for(service: ServiceClient) -> None:
    """Slurm 22.05 shows `shard:0` until then."""
    jobs, nodes = recorded()
    restarted = [node | {"gres": "gpu:v100:1,shard:0"} for node in nodes]
    waits = {"StartTime": "now+15", "AdminComment": f"{HELD} ask_s=1006"}
    assert decide(held(), jobs, restarted, service, CONFIG, 1001.0) == waits
    left = {"StartTime": "now", "AdminComment": "cotenant:left no GPU to share now"}
    assert decide(held(), jobs, restarted, service, CONFIG, 1601.0) == left
    down = [node | {"state": "down"} for node in restarted]
    assert decide(held(), jobs, down, service, CONFIG, 1001.0) == left
    without_shards = [node | {"gres": "gpu:v100:1"} for node in nodes]
    assert decide(held(), jobs, without_shards, service, CONFIG, 1001.0) == left
