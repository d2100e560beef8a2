"""The Ray integration on real Ray: three nodes with one synthetic GPU each, and a running service.

`python -m benchmarks.ray_integration --service URL`; Ray may be in a separate environment (with httpx and
psutil). Checks where actors run, with and without the service. Without Ray, it says so and exits
successfully.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record
from serving.integrations.ask import ServiceClient
from serving.integrations.ray import RayPlacer

JOBS = ("resnet18-cifar:batch_size=64", "resnet50-imagenet:batch_size=64", "lstm-wikitext2:batch_size=20")


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "--service", default="http://127.0.0.1:8080", help="the service's address (default: %(default)s)"
    )
    options = parser.parse_args()
    if find_spec("ray") is None:
        print("skipped: ray is not installed (pip install 'cotenant[ray]')")
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    try:
        figures = prove(cluster, options.service)
    finally:
        import ray

        ray.shutdown()
        cluster.shutdown()
    record("ray_integration", figures)


def prove(cluster: Any, url: str) -> dict[str, Any]:
    import ray

    for kind in ("K80", "V100", "V100"):
        cluster.add_node(num_cpus=2, num_gpus=1, resources={f"accelerator_type:{kind}": 1})
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, include_dashboard=False, log_to_driver=False)

    @ray.remote(num_gpus=0.25, num_cpus=0.1)
    class Job:
        def where(self) -> tuple[str, int]:
            return ray.get_runtime_context().get_node_id(), int(ray.get_gpu_ids()[0])

    kinds = {
        n["NodeID"]: next((k for k in n["Resources"] if k.startswith("accelerator_type:")), "head")
        for n in ray.nodes()
    }
    figures: dict[str, Any] = {"ray": ray.__version__, "with the integration": [], "service down": []}
    actors = []
    for title, service in (
        ("with the integration", ServiceClient(url, timeout_s=60)),
        ("service down", ServiceClient("http://127.0.0.1:9")),
    ):
        placer = RayPlacer(service)
        for number, spec in enumerate(JOBS):
            strategy = placer.place(str(number), spec, 20_000)
            actor = Job.options(scheduling_strategy=strategy or "DEFAULT").remote()  # type: ignore[attr-defined]
            actors.append(actor)
            node, gpu = ray.get(actor.where.remote(), timeout=60)
            placer.started(str(number), node, str(gpu))
            figures[title].append({
                "job": spec, "asked_for": strategy and kinds[strategy.node_id], "ran_on": kinds[node],
                "same_node": strategy is not None and strategy.node_id == node, "node": node[:8], "gpu": gpu,
            })  # fmt: skip
    for title in ("with the integration", "service down"):
        for figure in figures[title]:
            print(title, figure)
    return figures


if __name__ == "__main__":
    run_benchmark(__file__, main)
