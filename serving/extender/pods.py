"""Parses a scheduler's requests: pods and node lists; field names in any letter case, as in Go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiling.errors import InputError, LimitError
from scheduling.clusters.importers import pods
from scheduling.clusters.importers.pods import PodJob, field
from serving.job_ranges import check_range, check_ranges


@dataclass(frozen=True, slots=True)
class Arguments:
    """`ExtenderArgs`: the pod, and the nodes as names or as whole objects (the other is None)."""

    pod: dict[str, Any]
    node_names: list[str] | None
    nodes: dict[str, Any] | None

    @property
    def names(self) -> list[str]:
        """Names of the nodes, in either form."""
        if self.node_names is not None:
            return self.node_names
        items = field(self.nodes, "items") or []
        return [str(field(field(item, "metadata"), "name")) for item in items]


def read_arguments(body: Any, most_nodes: int) -> Arguments:
    """Parse `ExtenderArgs`. Raises `InputError`; `LimitError` if it has more than `most_nodes`."""
    pod, names, nodes = field(body, "Pod"), field(body, "NodeNames"), field(body, "Nodes")
    if not isinstance(pod, dict):
        raise InputError("request has no pod", expected="ExtenderArgs with Pod", got=type(body).__name__)
    if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        raise InputError("NodeNames is not a list of names", expected="strings")
    items = field(nodes, "items")
    for listed_nodes in (names, items):
        if isinstance(listed_nodes, list) and len(listed_nodes) > most_nodes:
            raise LimitError(
                "too many nodes",
                expected=f"at most {most_nodes} (cluster_gpus)",
                got=len(listed_nodes),
            )
    listed = items is None or (isinstance(items, list) and all(_named(i) for i in items))
    if nodes is not None and not (isinstance(nodes, dict) and listed):
        raise InputError("Nodes is not a NodeList", expected="items with metadata.name")
    if names is None and nodes is None:
        raise InputError("request has no nodes", expected="NodeNames or Nodes")
    return Arguments(pod, names, nodes)


def read_job(pod: dict[str, Any]) -> PodJob | None:
    """The job of a pod, as `pods.read_job` reads it, with all numbers in range. Raises `InputError`."""
    job = pods.read_job(pod)
    if job is not None:
        check_ranges(job.workload)
        check_range("max_slowdown", job.max_slowdown)
        if job.iterations is not None:
            check_range("iterations", job.iterations)
    return job


def _named(item: Any) -> bool:
    return isinstance(field(field(item, "metadata"), "name"), str)
