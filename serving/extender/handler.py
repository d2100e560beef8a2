"""Filter and prioritize from the stored cluster state.

Filter removes only nodes where the job can never run, because no GPU of the node fits it even alone. A node
missing from the stored state, or with a GPU of an unknown type, is kept without preference: we advise, the
scheduler decides. For a pod that requests MIG slices (`nvidia.com/mig-3g.20gb`) only slices of that profile
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from predictor.types import Prediction
from profiling.devices import get_device, is_known, mig_layout, runs_on, split_device
from profiling.devices.mig import MIG_OPTION
from profiling.errors import CotenantError, InfeasibleError
from profiling.workload import ColocationSet
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node
from scheduling.placement.ranking import PlacementConfig
from serving.extender.pods import Arguments, PodJob, field, read_arguments, read_job
from serving.handlers.cluster import stored_state
from serving.handlers.jobs import admit
from serving.handlers.place import choose
from serving.service import Service

MAX_SCORE = 10
log = structlog.get_logger("cotenant.extender")


async def filter_nodes(service: Service, body: Any) -> dict[str, Any]:
    """`ExtenderFilterResult` for `ExtenderArgs`; failures are reported in its `Error`."""
    result: dict[str, Any] = {
        "Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": "",
    }  # fmt: skip
    try:
        arguments = read_arguments(body)
        job = read_job(arguments.pod)
        never = await _never(service, arguments, job) if job is not None else {}
    except CotenantError as error:
        return result | {"Error": error.message}
    result["FailedAndUnresolvableNodes"] = never
    if arguments.node_names is not None:
        result["NodeNames"] = [name for name in arguments.node_names if name not in never]
    else:
        assert arguments.nodes is not None
        items = field(arguments.nodes, "items") or []
        kept = [i for i in items if field(field(i, "metadata"), "name") not in never]
        rest = {k: v for k, v in arguments.nodes.items() if k.lower() != "items"}
        result["Nodes"] = rest | {"items": kept}
    return result


async def prioritize_nodes(service: Service, body: Any) -> list[dict[str, Any]]:
    """`HostPriorityList`: 10 for the best node, in proportion for the others, 0 for unknown or full nodes.

    The response type has no error field, so on failure every node gets 0 and the scheduler uses its other
    preferences.
    """
    try:
        arguments = read_arguments(body)
    except CotenantError as error:
        log.warning("prioritize not understood", error=error.message)
        return []
    scores: dict[str, int] = {}
    try:
        job = read_job(arguments.pod)
        if job is not None:
            scores = await _scores(service, arguments, job)
    except CotenantError as error:
        log.warning("prioritize without preference", error=error.message)
    return [{"Host": name, "Score": scores.get(name, 0)} for name in arguments.names]


async def _never(service: Service, arguments: Arguments, job: PodJob) -> dict[str, str]:
    """Nodes that can never run the job, with the reason."""
    stored = (await service.read(stored_state, service)).snapshot
    # We cannot judge a node with a GPU of an unknown type.
    known_nodes = [
        node for node in _asked(stored, arguments) if all(is_known(gpu.device) for gpu in node.gpus)
    ]
    kind, kinds = (
        (f"MIG slice {job.mig_profile}", f"MIG slices {job.mig_profile}")
        if job.mig_profile
        else ("GPU", "GPUs")
    )
    nodes = [_offered(node, job.mig_profile) for node in known_nodes]
    alone = await _alone(service, job, nodes)

    def lacking(gpu: Gpu) -> str:
        known = alone.get((gpu.device, gpu.sharing))
        if known is None:
            return f"{gpu.device} has no {job.workload.precision.upper()}"
        return "" if known.fits else f"{gpu.device}: {known.reasons[0]}"

    never = {}
    for node in nodes:
        small = [reason for reason in map(lacking, node.gpus) if reason]
        able = len(node.gpus) - len(small)
        if not node.gpus:
            never[node.name] = f"the node has no {kind}"
        elif job.gpus > len(node.gpus):
            never[node.name] = f"the pod requests {job.gpus} {kinds} and the node has {len(node.gpus)}"
        elif job.gpus > able:
            some = f"the job fits on {able} of {job.gpus} {kinds}: " if job.gpus > 1 else ""
            never[node.name] = some + "; ".join(sorted(set(small)))
    return never


async def _alone(service: Service, job: PodJob, nodes: Iterable[Node]) -> dict[tuple[str, str], Prediction]:
    """Solo predictions of the job on the GPUs of these nodes, by device and sharing mode.

    Unknown types, and those that lack its precision, are left out.
    """
    types = sorted({(g.device, g.sharing) for node in nodes for g in node.gpus if is_known(g.device)})
    await admit(service, (job.workload,), {device for device, _ in types})
    types = [(device, sharing) for device, sharing in types if runs_on(device, job.workload.precision)]
    predictions = await service.batcher.predict_many([ColocationSet(d, (job.workload,), s) for d, s in types])
    return dict(zip(types, predictions, strict=True))


def _asked(snapshot: ClusterSnapshot, arguments: Arguments) -> list[Node]:
    """The stored nodes among those of the request."""
    names = set(arguments.names)
    return [node for node in snapshot.nodes if node.name in names]


def _offered(node: Node, mig_profile: str | None) -> Node:
    """The node with the GPUs that such a request can get: slices of that profile or, if it is None, whole cards.

    A node without whole cards is taken to have the device plugin's `single` strategy, under which its slices are
    requested as GPUs.
    """
    profiles = [_profile_of(gpu.device) for gpu in node.gpus]
    if mig_profile is None and None not in profiles:
        return node
    gpus = tuple(gpu for gpu, profile in zip(node.gpus, profiles, strict=True) if profile == mig_profile)
    return node if len(gpus) == len(node.gpus) else replace(node, gpus=gpus)


def _profile_of(device: str) -> str | None:
    """Profile of a slice: `3g.20gb` for `a100:mig=3g`; None for a whole card or an unknown type."""
    if MIG_OPTION not in device or not is_known(device):
        return None
    card, part = split_device(get_device(device).name)
    return None if part is None else mig_layout(card).profile(part).name


async def _scores(service: Service, arguments: Arguments, job: PodJob) -> dict[str, int]:
    stored = (await service.read(stored_state, service)).snapshot
    nodes = tuple(_offered(node, job.mig_profile) for node in _asked(stored, arguments))
    if job.gpus > 1:
        return await _gang_scores(service, nodes, job)
    count = sum(len(node.gpus) for node in nodes)
    if not count:
        return {}
    config = PlacementConfig(objective=job.objective, max_slowdown=job.max_slowdown, wait=False, limit=count)
    try:
        decision = await choose(service, job.workload, job.iterations, replace(stored, nodes=nodes), config)
    except InfeasibleError:
        return {}
    costs: dict[str, float] = {}
    for ranked in decision.ranked:  # best first
        costs.setdefault(ranked.node, ranked.score)
    if not costs:
        return {}
    best = min(costs.values())
    return {
        name: MAX_SCORE if cost <= best else max(1, round(MAX_SCORE * (best + 1e-3) / (cost + 1e-3)))
        for name, cost in costs.items()
    }


async def _gang_scores(service: Service, nodes: Sequence[Node], job: PodJob) -> dict[str, int]:
    """Scores for a gang, proportional to its predicted pace on each node.

    It takes a node's fastest whole, empty GPUs and runs at the pace of the slowest. Among equal nodes, those with
    the fewest spare empty GPUs come first.
    """
    alone = await _alone(service, job, nodes)
    costs: dict[str, tuple[float, int]] = {}
    for node in nodes:
        empty = [alone.get((gpu.device, gpu.sharing)) for gpu in node.gpus if not gpu.tenants]
        steps = sorted(known.members[0].step_time_s.value for known in empty if known and known.fits)
        if len(steps) >= job.gpus:
            costs[node.name] = steps[job.gpus - 1], len(empty) - job.gpus
    scores: dict[str, int] = {}
    best = min((step for step, _ in costs.values()), default=0.0)
    least = {step: min(spare for s, spare in costs.values() if s == step) for step, _ in costs.values()}
    score = MAX_SCORE
    for name, (step, spare) in sorted(costs.items(), key=lambda item: item[1]):
        # One less breaks the tie; a slower node is never ranked higher.
        tied = round(MAX_SCORE * best / step) - (spare > least[step])
        score = scores[name] = max(1, min(score, tied))
    return scores
