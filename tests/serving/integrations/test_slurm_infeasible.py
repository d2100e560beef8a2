"""Jobs that fit on none of the GPUs that they could get now, under Slurm."""

from __future__ import annotations

from dataclasses import replace

from serving.integrations.ask import ServiceClient
from serving.integrations.slurm import decide
from serving.integrations.slurm_state import HELD
from tests.serving.integrations.test_slurm import CONFIG, away, held, recorded, service

__all__ = ["service"]

# With the table predictor, too large for a K80, and for any of these GPUs.
LARGE = "cotenant:resnet18-cifar:batch_size=1300,iterations=1000"
HUGE = "cotenant:resnet18-cifar:batch_size=100000,iterations=1000"


def test_the_gpus_on_which_a_job_fits_are_waited_for(service: ServiceClient) -> None:
    """Slurm alone would start it at once on the GPU without the memory for it."""
    jobs, nodes = recorded()
    mixed = [nodes[0] | {"gres": "gpu:v100:1,gpu:k80:1,shard:8"}]
    on_v100 = [replace(j, holds={"node-a": {0: ("shard", 4)}}) for j in jobs if j.state == "RUNNING"]
    job = held(LARGE)
    assert " gpu=0 " in decide(job, [], mixed, service, CONFIG, 1001.0)["AdminComment"]
    waits = {"StartTime": "now+70", "AdminComment": f"{HELD} ask_s=1061"}
    assert decide(job, on_v100, mixed, service, CONFIG, 1001.0) == waits
    assert decide(replace(job, whole=True), on_v100, mixed, service, CONFIG, 1001.0) == waits
    late = decide(job, on_v100, mixed, service, CONFIG, 1601.0)
    assert late == {"StartTime": "now", "AdminComment": "cotenant:left waited long enough"}


def test_a_job_that_fits_on_no_gpu_is_left_to_slurm(service: ServiceClient) -> None:
    jobs, nodes = recorded()
    mixed = [nodes[0] | {"gres": "gpu:v100:1,gpu:k80:1,shard:8"}]
    on_v100 = [replace(j, holds={"node-a": {0: ("shard", 4)}}) for j in jobs if j.state == "RUNNING"]
    left = {"StartTime": "now", "AdminComment": "cotenant:left fits on no GPU"}
    assert decide(held(HUGE), [], mixed, service, CONFIG, 1001.0) == left
    assert decide(held(HUGE), on_v100, mixed, service, CONFIG, 1001.0) == left
    assert decide(held(HUGE), [], mixed, away(), CONFIG, 1001.0)["AdminComment"] == "cotenant:left no answer"
