"""Filter and prioritize from the stored cluster state.

Filter removes only nodes where the job can never run, because no GPU of the node fits it even alone. A node
missing from the stored state, or with a GPU of an unknown type, is kept without preference: we advise, the
scheduler decides. For a pod that requests MIG slices (`nvidia.com/mig-3g.20gb`) only slices of that profile
count.

A scheduler asks about thousands of nodes at once: what nodes with the same GPUs have in common is worked out once, and
what is left for each node is done off the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter
from typing import Any

import structlog

from predictor.types import Floats, Prediction
from profiling.devices import is_known, runs_on
from profiling.errors import CotenantError, InfeasibleError, InputError, TooSlowError, shortened
from profiling.workload import ColocationSet
from scheduling.clusters.importers.offers import Offers
from scheduling.clusters.importers.pods import PodJob, field, name_of
from scheduling.core.snapshot import ClusterSnapshot, Node
from scheduling.placement.ranking import PlacementConfig
from serving.cluster_state import ClusterState
from serving.extender.pods import Arguments, read_arguments, read_job
from serving.handlers.jobs import admit
from serving.handlers.place import choose_gpu, score_gpus
from serving.http import decode
from serving.service import Service

MAX_SCORE = 10
_QUOTED = 200  # characters
REPLICATED = ("time-slice", "mps")  # sharing modes in which a device plugin can advertise a GPU several times
log = structlog.get_logger("cotenant.extender")
Kind = tuple[str, str]  # device, sharing mode
_Alone = dict[Kind, Prediction | TooSlowError]  # of the job alone


async def filter_nodes(service: Service, raw: bytes) -> dict[str, Any]:
    """`ExtenderFilterResult` for `ExtenderArgs`.

    A mistake in the pod removes every node: the scheduler then shows it among the pod's events. In `Error` it would
    not: where the extender is ignorable, the scheduler goes on without it. All other failures are reported there.
    """
    off_loop = service.batcher.off_loop
    try:
        arguments = await off_loop(len(raw), _arguments, raw, service.config.cluster_gpus)
        try:
            job = await off_loop(len(raw), read_job, arguments.pod)
            never = await _never(service, arguments, job, len(raw)) if job is not None else {}
        except InputError as error:
            log.warning("pod refused", pod=name_of(arguments.pod), error=error.message)
            never = dict.fromkeys(arguments.names, _in_short(error))
    except CotenantError as error:
        return _result() | {"Error": error.message}
    result: dict[str, Any] = await off_loop(len(raw), _kept, arguments, never)
    return result


async def prioritize_nodes(service: Service, raw: bytes) -> list[dict[str, Any]]:
    """`HostPriorityList`: 10 for the best node, in proportion for the others, 0 for unknown or full nodes.

    The best node is that of the configured policy, chosen among the nodes of the request. If there is no policy, or it
    would let the job wait, which a scheduler cannot be told here, or for a gang, the predicted cost decides.

    The response type has no error field, so on failure every node gets 0 and the scheduler uses its other
    preferences.
    """
    off_loop = service.batcher.off_loop
    try:
        arguments = await off_loop(len(raw), _arguments, raw, service.config.cluster_gpus)
    except CotenantError as error:
        log.warning("prioritize not understood", error=error.message)
        return []
    scores: dict[str, int] = {}
    try:
        job = await off_loop(len(raw), read_job, arguments.pod)
        if job is not None:
            scores = await _scores(service, arguments, job)
    except CotenantError as error:
        log.warning("prioritize without preference", error=error.message)
    listed: list[dict[str, Any]] = await off_loop(len(raw), _listed, arguments, scores)
    return listed


def _arguments(raw: bytes, most_nodes: int) -> Arguments:
    return read_arguments(decode(raw, dict), most_nodes)


def _in_short(error: InputError) -> str:
    """Its message with little of a long annotation, because the answer repeats it for every node."""
    detail, got = shortened(error.detail, _QUOTED), error.got
    given = None if got is None else shortened(got, _QUOTED)
    return InputError(detail, expected=error.expected, got=given, hint=error.hint).message


def _result() -> dict[str, Any]:
    return {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def _kept(arguments: Arguments, never: dict[str, str]) -> dict[str, Any]:
    """The result of a filter; the nodes in the form that they came in."""
    result = _result() | {"FailedAndUnresolvableNodes": never}
    if arguments.node_names is not None:
        return result | {"NodeNames": [name for name in arguments.node_names if name not in never]}
    assert arguments.nodes is not None
    items = field(arguments.nodes, "items") or []
    kept = [i for i in items if field(field(i, "metadata"), "name") not in never]
    rest = {k: v for k, v in arguments.nodes.items() if k.lower() != "items"}
    return result | {"Nodes": rest | {"items": kept}}


def _listed(arguments: Arguments, scores: dict[str, int]) -> list[dict[str, Any]]:
    return [{"Host": name, "Score": scores.get(name, 0)} for name in arguments.names]


async def _never(service: Service, arguments: Arguments, job: PodJob, size_bytes: int) -> dict[str, str]:
    """Nodes that can never run the job, with the reason."""
    offered = await service.read(_offered, service, arguments, job.mig_profile)
    alone = await _alone(service, job, (kind for kinds in set(offered.values()) for kind in kinds))
    never: dict[str, str] = await service.batcher.off_loop(size_bytes, _reasons, job, offered, alone)
    return never


def _offered(service: Service, arguments: Arguments, mig_profile: str | None) -> dict[str, tuple[Kind, ...]]:
    """By stored node of the request, the GPUs that the pod can get.

    Without the nodes that have a GPU of an unknown type, which we cannot judge.
    """
    offers, seen = Offers(mig_profile), dict[tuple[Kind, ...], tuple[Kind, ...] | None]()
    offered = {}
    for _, node in _asked(service.cluster.current(), arguments):
        kinds = tuple([(gpu.device, gpu.sharing) for gpu in node.gpus])
        if kinds not in seen:
            judged = all(is_known(device) for device, _ in kinds)
            seen[kinds] = tuple(kinds[k] for k in offers.places(node)) if judged else None
        own = seen[kinds]
        if own is not None:
            offered[node.name] = own
    return offered


def _reasons(job: PodJob, offered: dict[str, tuple[Kind, ...]], alone: _Alone) -> dict[str, str]:
    reason = {kinds: _why_never(job, kinds, alone) for kinds in set(offered.values())}
    return {name: reason[kinds] for name, kinds in offered.items() if reason[kinds]}


def _why_never(job: PodJob, kinds: Sequence[Kind], alone: _Alone) -> str:
    """Why a node that offers these GPUs can never run the job; empty if it can."""
    one, many = (
        (f"MIG slice {job.mig_profile}", f"MIG slices {job.mig_profile}")
        if job.mig_profile
        else ("GPU", "GPUs")
    )

    def lacking(kind: Kind) -> str:
        known = alone.get(kind)
        if known is None:
            return f"{kind[0]} has no {job.workload.precision.upper()}"
        if isinstance(known, TooSlowError):
            return known.message
        return "" if known.fits else f"{kind[0]}: {known.reasons[0]}"

    small = [reason for reason in map(lacking, kinds) if reason]
    able = len(kinds) - len(small)
    if not kinds:
        return f"the node has no {one}"
    gpus = job.gpus
    if gpus > len(kinds):
        # A node may advertise each shared GPU several times. The scheduler has already compared the request with that.
        if all(sharing not in REPLICATED for _, sharing in kinds):
            return f"the pod requests {gpus} {many} and the node has {len(kinds)}"
        gpus = len(kinds)
    if gpus > able:
        some = f"the job fits on {able} of {gpus} {many}: " if gpus > 1 else ""
        return some + "; ".join(sorted(set(small)))
    return ""


async def _alone(service: Service, job: PodJob, kinds: Iterable[Kind]) -> _Alone:
    """Solo predictions of the job on these GPUs.

    Unknown types, and those that lack its precision, are left out.

    Raises:
        InputError: it cannot be predicted, for another reason than a type too slow for it.
    """
    types = sorted({kind for kind in kinds if is_known(kind[0])})
    await admit(service, (job.workload,), {device for device, _ in types})
    types = [(device, sharing) for device, sharing in types if runs_on(device, job.workload.precision)]
    predictions = await service.batcher.predict_each([ColocationSet(d, (job.workload,), s) for d, s in types])
    alone: _Alone = {}
    for kind, known in zip(types, predictions, strict=True):
        if isinstance(known, InputError) and not isinstance(known, TooSlowError):
            raise known
        alone[kind] = known
    return alone


def _asked(state: ClusterState, arguments: Arguments) -> Iterator[tuple[int, Node]]:
    """The stored nodes among those of the request, each once, with their numbers in the snapshot."""
    for name in dict.fromkeys(arguments.names):
        place = state.place_of.get(name)
        if place is not None:
            yield place, state.snapshot.nodes[place]


async def _scores(service: Service, arguments: Arguments, job: PodJob) -> dict[str, int]:
    state = await service.read(service.cluster.current)
    if job.gpus > 1:
        empty = await service.read(_empty, state, arguments, job.mig_profile)
        alone = await _alone(service, job, {kind for kinds in empty.values() for kind in kinds})
        return await service.batcher.bulk.run(_gang_scores, job.gpus, empty, alone)
    if not any(node.gpus for node in state.snapshot.nodes):
        return {}
    config = PlacementConfig(objective=job.objective, max_slowdown=job.max_slowdown, wait=False)
    try:
        # On the whole cluster whichever nodes are asked about: its states are then known from the last decision.
        kept, scores = await score_gpus(service, job.workload, job.iterations, state.snapshot, config)
    except InfeasibleError:
        return {}
    chosen = None
    if service.config.policy is not None:
        offered = await service.batcher.bulk.run(_offered_part, state, arguments, job.mig_profile, kept)
        chosen = await choose_gpu(service, job.workload, job.iterations, offered, config)
    scored = await service.batcher.bulk.run(_in_proportion, state, arguments, job.mig_profile, kept, scores)
    return scored if chosen is None else _with_first(scored, chosen[0])


def _offered_part(
    state: ClusterState, arguments: Arguments, mig_profile: str | None, kept: ClusterSnapshot
) -> ClusterSnapshot:
    """The part of `kept` that the pod can get: its GPUs on the nodes of the request."""
    offers, nodes = Offers(mig_profile), []
    # In the cluster's order, so that a policy decides among equal GPUs as it does for a placement.
    for place, node in sorted(_asked(state, arguments), key=itemgetter(0)):
        ids = {node.gpus[k].id for k in offers.places(node)}
        whole = kept.nodes[place]
        nodes.append(replace(whole, gpus=tuple(gpu for gpu in whole.gpus if gpu.id in ids)))
    return replace(kept, nodes=tuple(nodes))


def _with_first(scores: dict[str, int], first: str) -> dict[str, int]:
    """The scores with one node before all others, whose order among themselves stays."""
    return {name: min(score, MAX_SCORE - 1) for name, score in scores.items()} | {first: MAX_SCORE}


def _in_proportion(
    state: ClusterState,
    arguments: Arguments,
    mig_profile: str | None,
    kept: ClusterSnapshot,
    scores: Floats,
) -> dict[str, int]:
    """Scores of the nodes of the request on which the pod can get a GPU now.

    Args:
        kept: the same nodes as in the snapshot of `state`, with the GPUs that can be predicted.
        scores: [G] of the GPUs of `kept`; the lowest is best.
    """
    offers, values = Offers(mig_profile), scores.tolist()
    first = [0, *accumulate(len(node.gpus) for node in kept.nodes)]
    costs: dict[str, float] = {}
    for place, node in _asked(state, arguments):
        own = values[first[place] : first[place + 1]]
        places = offers.places(node)
        if len(places) < len(node.gpus):
            ids = {node.gpus[k].id for k in places}
            own = [value for value, gpu in zip(own, kept.nodes[place].gpus, strict=True) if gpu.id in ids]
        cost = min(own, default=float("inf"))
        if cost < float("inf"):
            costs[node.name] = cost
    best = min(costs.values(), default=0.0)
    return {
        name: MAX_SCORE if cost <= best else max(1, round(MAX_SCORE * (best + 1e-3) / (cost + 1e-3)))
        for name, cost in costs.items()
    }


def _empty(state: ClusterState, arguments: Arguments, mig_profile: str | None) -> dict[str, tuple[Kind, ...]]:
    """By stored node of the request, the empty GPUs that the pod can get."""
    offers = Offers(mig_profile)
    return {
        node.name: tuple(
            [
                (gpu.device, gpu.sharing)
                for gpu in map(node.gpus.__getitem__, offers.places(node))
                if not gpu.tenants
            ]
        )
        for _, node in _asked(state, arguments)
    }


def _gang_scores(gpus: int, empty: dict[str, tuple[Kind, ...]], alone: _Alone) -> dict[str, int]:
    """Scores for a gang, proportional to its predicted pace on each node.

    It takes a node's fastest whole, empty GPUs and runs at the pace of the slowest. Among equal nodes, those with
    the fewest spare empty GPUs come first.
    """
    steps_of = {
        kind: known.members[0].step_time_s.value
        for kind, known in alone.items()
        if not isinstance(known, TooSlowError) and known.fits
    }
    costs: dict[str, tuple[float, int]] = {}
    for name, kinds in empty.items():
        steps = sorted(steps_of[kind] for kind in kinds if kind in steps_of)
        if len(steps) >= gpus:
            costs[name] = steps[gpus - 1], len(kinds) - gpus
    scores: dict[str, int] = {}
    best = min((step for step, _ in costs.values()), default=0.0)
    least: dict[float, int] = {}  # spare GPUs, by step time
    for step, spare in costs.values():
        least[step] = min(spare, least.get(step, spare))
    score = MAX_SCORE
    for name, (step, spare) in sorted(costs.items(), key=lambda item: item[1]):
        # One less breaks the tie; a slower node is never ranked higher.
        tied = round(MAX_SCORE * best / step) - (spare > least[step])
        score = scores[name] = max(1, min(score, tied))
    return scores
