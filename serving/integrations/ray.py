"""Ray integration: choose the node of a Ray cluster where a job should share a GPU.

    placer = RayPlacer(ServiceClient("http://127.0.0.1:8080"))
    strategy = placer.place("train-7", "resnet18-cifar:batch_size=64", iterations=20000)
    actor = Trainer.options(num_gpus=0.5, scheduling_strategy=strategy or "DEFAULT").remote()

`place` returns None if the service does not respond; Ray then places the job as it would without the service. For a
fraction of a GPU, Ray itself chooses which one of the node; report it to the placer with `started`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from profiling.errors import UnknownNameError
from scheduling.clusters.importers.pod_tenants import MOST_TENANTS
from scheduling.clusters.importers.titles import device_of
from serving.integrations.ask import ServiceClient
from serving.integrations.upload import Upload

log = logging.getLogger("cotenant.integrations")


@dataclass(frozen=True, slots=True)
class Running:
    """A job placed by this placer, and its predicted end.

    Attributes:
        iterations: None if unknown; the service then assumes an hour's worth, however long the job has run.
        gpu: as the service named it or, once `started`, as Ray does.
    """

    job: str
    iterations: float | None
    node: str
    gpu: str
    since_s: float
    finish_s: float
    started: bool = False
    job_id: str = ""

    def tenant(self, now_s: float) -> dict[str, Any]:
        """The job as a tenant for `POST /v1/place`; at least 1 % is left while it runs."""
        named: dict[str, Any] = {"job": self.job} | ({"job_id": self.job_id} if self.job_id else {})
        if self.iterations is None:
            return named
        left = max(0.01, 1 - (now_s - self.since_s) / self.finish_s) if self.finish_s > 0 else 1.0
        return named | {"iterations_left": self.iterations * left}


@dataclass
class RayPlacer:
    """Asks the service, and remembers the jobs that it placed; it cannot see other users of the GPUs.

    Attributes:
        devices: accelerator type of Ray (`V100`, `A100-80G`) to catalogue name, where it is not recognised, or where
            Ray's GPUs are slices (`{"A100": "a100:mig=3g"}`).
    """

    service: ServiceClient = field(default_factory=ServiceClient)
    devices: Mapping[str, str] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    _seats: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False)

    def place(self, job_id: str, job: str, iterations: float | None = None, nodes: Iterable[Mapping[str, Any]] | None = None) -> Any:  # fmt: skip
        """A `NodeAffinitySchedulingStrategy`, or None to let Ray choose: no answer, no GPU, or no room now.

        If the node dies meanwhile, or others have taken its resources, Ray runs the job elsewhere. A job that is placed
        again, because it restarts, no longer counts where it was.

        Args:
            nodes: as returned by `ray.nodes()`; None to query them.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.ended(job_id)
        answer = self.ask(job, iterations, ray.nodes() if nodes is None else nodes)
        if answer is not None and answer["decision"] == "infeasible":
            log.warning("job %s: %s", job_id, answer["reasons"][0])
        if answer is None or not answer["ranked"]:
            return None
        best = answer["ranked"][0]
        self.running[job_id] = Running(
            job, iterations, best["node"], best["gpu"], time.time(), float(best["finish_s"]), job_id=job_id
        )
        # `soft` alone waits for a live node's resources for ever, however many others are free.
        return NodeAffinitySchedulingStrategy(best["node"], soft=True, _spill_on_unavailable=True)

    def ask(self, job: str, iterations: float | None, nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:  # fmt: skip
        """The service's answer for a cluster of these nodes; None if there is none."""
        cluster = self.cluster(nodes)
        return self.service.place(job, iterations, cluster) if cluster["nodes"] else None

    def cluster(self, nodes: Iterable[Mapping[str, Any]], only_started: bool = False) -> dict[str, Any]:
        """Live nodes with GPUs of a known type, and their jobs, as the `cluster` of `POST /v1/place`.

        A GPU with more than `MOST_TENANTS` jobs is left out: the service would refuse the whole cluster.

        Args:
            only_started: without jobs that are placed and have not started.
        """
        now_s, nodes_with_gpus = time.time(), []
        for node in nodes:
            resources = node.get("Resources") or {}
            kinds = [k.partition(":")[2] for k in resources if k.startswith("accelerator_type:")]
            device = next((d for k in kinds if (d := _device(k, self.devices))), None)
            ids = [str(i) for i in range(int(resources.get("GPU") or 0))]
            if not node.get("Alive") or device is None or not ids:
                continue
            name = str(node["NodeID"])
            tenants: dict[str, list[dict[str, Any]]] = {i: [] for i in ids}
            for running, seat in self._seated(name, ids):
                if running.started or not only_started:
                    tenants.setdefault(seat, []).append(running.tenant(now_s))
            gpus = [
                {"id": i, "device": device, "tenants": tenants[i]}
                for i in ids
                if len(tenants[i]) <= MOST_TENANTS
            ]
            if gpus:
                nodes_with_gpus.append({"name": name, "gpus": gpus})
        return {"nodes": nodes_with_gpus}

    def _seated(self, node: str, ids: list[str]) -> list[tuple[Running, str]]:
        """The node's jobs, each with one of the node's `ids`.

        Under `CUDA_VISIBLE_DEVICES` Ray reports the ids in it: `3`, or a MIG slice's UUID. Each gets an id of its own,
        the same one while any job runs there.
        """
        here = [running for running in self.running.values() if running.node == node]
        reported = dict.fromkeys(running.gpu for running in here if running.started)
        known = self._seats.get(node, {})
        seats = {gpu: known[gpu] for gpu in reported if known.get(gpu) in ids}
        expected = Counter(running.gpu for running in here if not running.started)
        for gpu in reported:
            if gpu not in seats:
                free = [i for i in ids if i not in seats.values()] or ids
                seats[gpu] = gpu if gpu in free else min(free, key=lambda i: expected[i])
        self._seats[node] = seats
        return [(running, seats[running.gpu] if running.started else running.gpu) for running in here]

    def started(self, job_id: str, node: str, gpu: str | int) -> None:
        """Report where the job actually runs.

        Ray says so: `ray.get_runtime_context().get_node_id()`, `ray.get_gpu_ids()[0]`.
        """
        if job_id in self.running:
            self.running[job_id] = replace(self.running[job_id], node=node, gpu=str(gpu), started=True)

    def ended(self, job_id: str) -> None:
        self.running.pop(job_id, None)

    def upload(self, nodes: Iterable[Mapping[str, Any]] | None = None) -> bool:
        """Replace the service's stored cluster by Ray's; returns whether that succeeded.

        Call it after `started` and `ended`: the dashboard then shows the cluster, and the jobs' training loops can report
        their step times (`serving.integrations.step_times`). A job that has not started is left out, because it may wait,
        or start elsewhere. The service's token must be of scope `admin`.

        Args:
            nodes: as returned by `ray.nodes()`; None to query them.
        """
        if nodes is None:
            import ray

            nodes = ray.nodes()
        return Upload(self.service, valid_s=None).store(self.cluster(nodes, only_started=True))


def _device(accelerator_type: str, devices: Mapping[str, str]) -> str | None:
    """Catalogue name of an accelerator type; None if it is unknown or stands for several."""
    try:
        return device_of(accelerator_type, devices)
    except UnknownNameError:
        return None
