"""Clusters from the output of other tools: `nvidia-smi`, Slurm, Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from profiling.errors import InputError, UnknownNameError
from scheduling.core.snapshot import ClusterSnapshot

SOURCES = {
    "nvidia-smi": (
        "nvidia_smi",
        "nvidia-smi --query-gpu=index,name,memory.total,mig.mode.current --format=csv",
    ),
    "sinfo": ("slurm", "sinfo -N -o '%N %G'    or    sinfo --json"),
    "scontrol": ("slurm", "scontrol show nodes    or    scontrol show nodes --json"),
    "kubectl": ("kubernetes", "kubectl get nodes -o json    or    kubectl get nodes,pods -A -o json"),
}
"""Name to the module that reads it, and the command that produces its input."""


def check_source(source: str) -> None:
    """Raise `UnknownNameError` unless the name is one of `SOURCES`."""
    if source not in SOURCES:
        raise UnknownNameError("unknown source", expected="one of " + ", ".join(SOURCES), got=source)


def import_cluster(
    source: str, text: str, devices: Mapping[str, str] | None = None, node: str = "node"
) -> ClusterSnapshot:
    """Read the output of another tool.

    Args:
        source: a name of `SOURCES`.
        devices: catalogue names by the tool's names, for those not recognised.
        node: name of the node, if the tool gives none (`nvidia-smi`).

    Raises:
        UnknownNameError: no such source, or a GPU type that is not recognised.
        InputError: the text is not output of that tool.
    """
    check_source(source)
    module, command = SOURCES[source]
    reader = import_module(f"scheduling.clusters.importers.{module}")
    try:
        nodes = reader.read(text, dict(devices or {}), node)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the output of {source} has an entry that does not match its format",
            expected=f"the output of `{command}`",
            got=f"{type(error).__name__}: {error}",
        ) from None
    cluster = ClusterSnapshot(tuple(nodes))
    if not any(True for _ in cluster.gpus()):
        raise InputError(f"no GPU in the output of {source}", expected=f"the output of `{command}`")
    return cluster
