"""Filter and prioritize from the stored cluster state.

Filter removes only nodes where the job can never run, because no GPU of the node fits it even alone. A node
missing from the stored state, or with a GPU of an unknown type, is kept without preference: we advise, the
scheduler decides. For a pod that requests MIG slices (`nvidia.com/mig-3g.20gb`) only slices of that profile
count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import structlog

from predictor.types import Prediction
from profiling.devices import get_device, is_known, mig_layout, runs_on, split_device
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
    snapshot = _offered(stored, job.mig_profile)
    # Nor can we judge a node with a GPU of an unknown type.
    asked = set(arguments.names).difference(
        node.name for node in stored.nodes if not all(is_known(gpu.device) for gpu in node.gpus)
    )
    kind = f"MIG slice {job.mig_profile}" if job.mig_profile else "GPU"
    nodes = [node for node in snapshot.nodes if node.name in asked]
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
            never[node.name] = f"the pod requests {job.gpus} {kind}s and the node has {len(node.gpus)}"
        elif job.gpus > able:
            some = f"the job fits on {able} of {job.gpus} {kind}s: " if job.gpus > 1 else ""
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


def _offered(snapshot: ClusterSnapshot, mig_profile: str | None) -> ClusterSnapshot:
    """The cluster reduced to slices of that profile; None for the whole cluster."""
    if mig_profile is None:
        return snapshot
    nodes = (
        replace(node, gpus=tuple(gpu for gpu in node.gpus if _profile_of(gpu.device) == mig_profile))
        for node in snapshot.nodes
    )
    return replace(snapshot, nodes=tuple(nodes))


def _profile_of(device: str) -> str | None:
    """Profile of a slice: `3g.20gb` for `a100:mig=3g`; None for a whole card or an unknown type."""
    if not is_known(device):
        return None
    card, part = split_device(get_device(device).name)
    return None if part is None else mig_layout(card).profile(part).name


async def _scores(service: Service, arguments: Arguments, job: PodJob) -> dict[str, int]:
    snapshot = _offered((await service.read(stored_state, service)).snapshot, job.mig_profile)
    if job.gpus > 1:
        return await _gang_scores(service, snapshot, arguments, job)
    count = sum(len(node.gpus) for node in snapshot.nodes)
    config = PlacementConfig(
        objective=job.objective, max_slowdown=job.max_slowdown, wait=False, limit=max(1, count)
    )
    try:
        decision = await choose(service, job.workload, job.iterations, snapshot, config)
    except InfeasibleError:
        return {}
    asked = set(arguments.names)
    costs: dict[str, float] = {}
    for ranked in decision.ranked:  # best first
        if ranked.node in asked:
            costs.setdefault(ranked.node, ranked.score)
    if not costs:
        return {}
    best = min(costs.values())
    return {
        name: MAX_SCORE if cost <= best else max(1, round(MAX_SCORE * (best + 1e-3) / (cost + 1e-3)))
        for name, cost in costs.items()
    }


async def _gang_scores(
    service: Service, snapshot: ClusterSnapshot, arguments: Arguments, job: PodJob
) -> dict[str, int]:
    """Scores for a gang, proportional to its predicted pace on each node.

    It takes a node's fastest whole, empty GPUs and runs at the pace of the slowest. Among equal nodes, those with
    the fewest spare empty GPUs come first.
    """
    asked = set(arguments.names)
    nodes = [node for node in snapshot.nodes if node.name in asked]
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
