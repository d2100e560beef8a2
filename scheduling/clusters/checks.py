"""Semantic checks of a cluster: unknown devices and models, dangling links."""

from __future__ import annotations

from collections import Counter
from typing import Any

from profiling.capture.naming import check_model
from profiling.devices import get_device, is_known, runs_on
from profiling.errors import InputError, UnknownNameError
from scheduling.core.snapshot import ClusterSnapshot


def check_cluster(cluster: ClusterSnapshot) -> list[str]:
    """Raise on the first fault that makes a cluster unusable, and return notes on mere oddities.

    Raises:
        InputError: no GPUs, a tenant in a precision that its GPU lacks, or a link without bandwidth.
        UnknownNameError: unknown device, or model of a tenant.
    """
    places = list(cluster.gpus())
    if not places:
        raise InputError("the cluster has no GPU", expected="at least one node with one GPU", got="none")
    for node, gpu in places:
        try:
            get_device(gpu.device)
        except UnknownNameError as error:
            raise UnknownNameError(f"GPU {gpu.id} of node {node.name}: {error.message}") from None
    _check_tenants(cluster)
    names = {node.name for node in cluster.nodes}
    notes = []
    for link in cluster.links:
        if not link.bandwidth_bytes_per_s > 0:
            raise InputError(
                f"link {link.source} to {link.target}: bandwidth_bytes_per_s is out of range",
                expected="a number above 0",
                got=link.bandwidth_bytes_per_s,
            )
        notes += [
            f"link {link.source} to {link.target}: {end} is not a node; assuming a switch"
            for end in (link.source, link.target)
            if end not in names
        ]
    notes += [f"node {node.name} has no GPU" for node in cluster.nodes if not node.gpus]
    return notes


def unknown_types(cluster: ClusterSnapshot) -> dict[str, int]:
    """Number of GPUs of each type that is not in the catalogue, as a slice may be that an importer has read."""
    return dict(Counter(gpu.device for _, gpu in cluster.gpus() if not is_known(gpu.device)))


def _check_tenants(cluster: ClusterSnapshot) -> None:
    for node, gpu in cluster.gpus():
        for tenant in gpu.tenants:
            try:
                check_model(tenant.job)
            except InputError as error:
                raise type(error)(f"a tenant of GPU {gpu.id} of node {node.name}: {error.message}") from None
            if not runs_on(gpu.device, tenant.job.precision):
                raise InputError(
                    f"a tenant of GPU {gpu.id} of node {node.name}, {tenant.job.model}, cannot run there",
                    expected=f"a precision that {gpu.device} has",
                    got=tenant.job.precision,
                )


def summary(cluster: ClusterSnapshot) -> dict[str, Any]:
    """Counts of nodes, GPUs (in all, by device and by sharing mode), tenants and links."""
    gpus = [gpu for _, gpu in cluster.gpus()]
    return {
        "nodes": len(cluster.nodes),
        "gpus": len(gpus),
        "by_device": dict(Counter(gpu.device for gpu in gpus)),
        "by_sharing": dict(Counter(gpu.sharing for gpu in gpus)),
        "tenants": sum(len(gpu.tenants) for gpu in gpus),
        "links": len(cluster.links),
    }
