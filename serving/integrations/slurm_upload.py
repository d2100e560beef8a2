"""Keeps the service's stored cluster in step with Slurm, for the dashboard and for reports of training loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from profiling.workload import REGISTERED
from profiling.zoo import zoo_names
from serving.integrations.ask import ServiceClient
from serving.integrations.slurm_cluster import whole_cluster
from serving.integrations.slurm_state import SlurmJob
from serving.integrations.upload import Upload, valid_for_s
from serving.job_ranges import parse_job

# Seconds after which the cluster is uploaded again: nodes may have changed, and jobs have made progress.
REPEAT_S = 60.0
# The same if the service did not store it: training loops would report their step times with jobs that are gone.
RETRY_S = 5.0


class SlurmUpload:
    """Uploads the cluster whenever a job has started or ended, and now and then.

    Args:
        client: with a token of scope `admin`.
        devices: GPU type in Slurm to catalogue name, as for `cluster_for`.
        period_s: seconds between looks.
    """

    def __init__(self, client: ServiceClient, devices: Mapping[str, str], period_s: float) -> None:
        self._client, self._devices = client, devices
        self._upload = Upload(client, valid_for_s(max(period_s, REPEAT_S)))
        self._running: dict[int, str] = {}
        self._due_s = 0.0

    def look(self, nodes: Callable[[], list[Mapping[str, Any]]], jobs: list[SlurmJob], now_s: float) -> None:
        """Upload the cluster if it is time to. Raises as `nodes`."""
        running = {job.id: job.state for job in jobs if job.has_gpus}
        if running == self._running and now_s < self._due_s:
            return
        lacks: dict[str, bool] = {}

        def knows(spec: str) -> bool:
            model = parse_job(spec).model
            if not model.startswith(REGISTERED):
                return model in zoo_names()
            if model not in lacks:
                lacks[model] = self._client.lacks(model)
            return not lacks[model]

        stored = self._upload.store(whole_cluster(jobs, nodes(), self._devices, knows, now_s))
        self._running, self._due_s = running, now_s + (REPEAT_S if stored else RETRY_S)
