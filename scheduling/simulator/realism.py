"""Realism that comparisons with papers lack: uncertain lengths, jobs that end early, nodes that fail."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from profiling.checked_fields import check_range
from profiling.errors import InputError, UnknownNameError
from scheduling.core.job import JobState, TraceJob
from scheduling.core.state import SchedulingSnapshot

# First number of the placeholder jobs on GPUs that are down.
_OUTAGES = -(10**9)


@dataclass(frozen=True, slots=True)
class Realism:
    """Deviations of a simulated cluster from an ideal one, which is the default.

    Attributes:
        length_sigma: policies expect a job's iterations times a log-normal factor of median 1 with this
            sigma.
        early_ratio: share of the jobs that are killed or fail, after a uniformly drawn part of their
            iterations.
        node_mtbf_s: mean seconds between failures of a node, exponential; its jobs go back to the queue.
        repair_s: seconds for which it then stays down.
        checkpoint_s: running seconds between checkpoints; a job that is stopped, moved or fails with its node
            loses its work since. 0: nothing is lost.
        saved_stops: jobs stopped or moved by the policy save a checkpoint first; only node failures lose
            work.
        restart_bytes_per_s: a restart takes longer by the job's memory divided by this rate.
        scatter_slowdown: factor on the step time of a gang that spans nodes if its gradients are unknown;
            otherwise they and the network give it (`scheduling.ring.scatter`). 1: scattering costs nothing.
        scaling: a job resized to k times its GPUs makes k ** scaling times the progress; None: as policies
            believe.
    """

    length_sigma: float = 0.0
    early_ratio: float = 0.0
    node_mtbf_s: float = float("inf")
    repair_s: float = 3600.0
    checkpoint_s: float = 0.0
    saved_stops: bool = False
    restart_bytes_per_s: float = float("inf")
    scatter_slowdown: float = 1.0
    scaling: float | None = None

    def __post_init__(self) -> None:
        check_range(self, lambda value: value >= 0, "a number from 0", "length_sigma", "checkpoint_s")
        check_range(self, lambda value: value >= 1, "a number from 1", "scatter_slowdown")
        above_0 = ("node_mtbf_s", "repair_s", "restart_bytes_per_s")
        check_range(self, lambda value: value > 0, "a number above 0", *above_0)
        check_range(self, lambda value: 0 <= value <= 1, "0 to 1", "early_ratio")
        if self.scaling is not None and not 0 < self.scaling <= 1:
            raise InputError("scaling is out of range", expected="above 0, at most 1", got=self.scaling)

    @classmethod
    def of(cls, parts: Sequence[str]) -> Realism:
        """Combine `parts` of `PARTS`, or `all` of them, and of `OPTIONS`, which override parts."""
        known = PARTS | OPTIONS
        names = [name for part in parts for name in (PARTS if part == "all" else [part])]
        names.sort(key=lambda name: name in OPTIONS)
        for name in names:
            if name not in known:
                raise UnknownNameError(
                    "unknown part of realism", expected="all, or some of " + ", ".join(known), got=name
                )
        whole = cls()
        for name in names:
            own = {f.name: getattr(known[name], f.name) for f in fields(cls)}
            plain = cls()
            whole = replace(whole, **{k: v for k, v in own.items() if v != getattr(plain, k)})
        return whole

    def draw_lengths(self, jobs: Sequence[JobState], rng: np.random.Generator) -> None:
        """Draw the actual length of every job and the length that policies assume."""
        factor = np.exp(self.length_sigma * rng.standard_normal(len(jobs)))
        early, part = rng.random(len(jobs)) < self.early_ratio, rng.uniform(0.0, 1.0, len(jobs))
        for k, job in enumerate(jobs):
            expected = job.job.iterations * float(factor[k])
            job.real_iterations = job.job.iterations * (max(float(part[k]), 1e-3) if early[k] else 1.0)
            job.left = job.checkpoint_left = job.real_iterations
            job.ends_early = bool(early[k])
            if self.length_sigma > 0 or early[k]:
                job.expected_iterations = expected


# Killed and unsuccessful jobs: 13.5 and 17.2 % of Philly's (Jeon et al., ATC 2019, table 6). The other
# figures are ours.
PARTS = {
    "lengths": Realism(length_sigma=0.5),
    "early-ends": Realism(early_ratio=0.307),
    "node-failures": Realism(node_mtbf_s=14 * 86400.0, checkpoint_s=1800.0),
    "restarts": Realism(checkpoint_s=1800.0, restart_bytes_per_s=2e8),
    "scatter": Realism(scatter_slowdown=1.25),
    "scaling": Realism(scaling=0.8),
}
# Differences between clusters; not part of `all`. Of Helios' GPU jobs, 22.1 % were cancelled and 15.5 % failed
# (`helios_cluster_summary.csv` in the artefact of Hu et al., SC 2021).
OPTIONS = {
    "saved-stops": Realism(saved_stops=True),
    "early-ends-helios": Realism(early_ratio=0.376),
}


class NodeOutages:
    """When nodes fail and recover; a GPU that is down has a placeholder job that may not share."""

    def __init__(self, realism: Realism, snapshot: SchedulingSnapshot, rng: np.random.Generator) -> None:
        self._realism, self._snapshot, self._rng = realism, snapshot, rng
        self.failures = 0
        self._events: list[tuple[float, int]] = []
        # Nodes of the cluster: one with GPUs of two types, which counts as two for gangs, fails as a whole.
        nodes: dict[str, list[int]] = {}
        for gpu, (node, _) in enumerate(snapshot.names):
            nodes.setdefault(node, []).append(gpu)
        self._nodes = list(nodes.values())
        if np.isfinite(realism.node_mtbf_s):
            first = rng.exponential(realism.node_mtbf_s, len(self._nodes))
            self._events = [(float(when), node) for node, when in enumerate(first)]
            heapq.heapify(self._events)

    @property
    def next_s(self) -> float:
        return self._events[0][0] if self._events else float("inf")

    def due(self) -> list[int]:
        """Fail or recover the node that is due; returns its GPUs if it fails, none if it recovers."""
        _, node = heapq.heappop(self._events)
        now_s, gpus = self._snapshot.now_s, self._nodes[node]
        back = gpus[0] in self._snapshot.down
        wait_s = float(self._rng.exponential(self._realism.node_mtbf_s)) if back else self._realism.repair_s
        heapq.heappush(self._events, (now_s + wait_s, node))
        if back:
            self._snapshot.repair(gpus)
            return []
        self.failures += 1
        return list(gpus)

    def close(self, gpus: Sequence[int], like: JobState) -> None:
        """Keep `gpus`, which are empty now, empty until the repair.

        Args:
            gpus: GPUs of a failed node.
            like: its workload is the one for which the predictor is queried if a policy looks at these GPUs.
        """
        placeholders = []
        for gpu in gpus:
            name = f"outage of {self._snapshot.names[gpu][0]}"
            job = TraceJob(name, like.job.workload, self._realism.repair_s, preemptible=False)
            state = JobState(
                job, _OUTAGES - gpu, job.iterations, rate=1.0, gpus=(gpu,), exclusive=True,
                frozen_prefix=job.workload.frozen_prefix,
            )  # fmt: skip
            state.updated_s, state.started_s = self._snapshot.now_s, self._snapshot.now_s
            placeholders.append(state)
        self._snapshot.fail(placeholders)
