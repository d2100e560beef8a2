"""The jobs that a caller may name: zoo models and registered graphs; never paths or code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog
from sqlalchemy import select

from predictor.types import Prediction
from profiling.devices import get_device, is_known
from profiling.errors import CotenantError, InputError, LimitError, UnknownNameError
from profiling.workload import REGISTERED, ColocationSet, Workload
from profiling.zoo import is_model, near_models
from scheduling.core.snapshot import ClusterSnapshot, Gpu, Node, changed_nodes
from serving.model_life import Serving
from serving.service import Service
from serving.store.tables import WorkloadRow, parts

log = structlog.get_logger("cotenant.jobs")


def unknown_graphs(service: Service, workloads: Iterable[Workload]) -> set[str]:
    """Hashes of graphs that this process has not loaded yet.

    Raises:
        UnknownNameError: a model is neither in the zoo nor a registered graph.
    """
    missing = set()
    for workload in workloads:
        model = workload.model
        if is_model(model) or model in service.graphs:
            continue
        if not model.startswith(REGISTERED):
            raise unknown_model(model, ", or graph:HASH of a workload registered with POST /v1/workloads")
        missing.add(model.removeprefix(REGISTERED))
    return missing


def unknown_model(model: str, otherwise: str = "") -> UnknownNameError:
    """The error for a model that is not in the zoo, with similar names; `otherwise` is what else it may be."""
    near = near_models(model[:200])
    such = f" such as {', '.join(near)}" if near else ""
    return UnknownNameError("unknown model", expected=f"a zoo name{such}{otherwise}", got=repr(model[:200]))


async def admit(service: Service, workloads: Iterable[Workload], devices: Iterable[str] = ()) -> None:
    """Check that devices and models are known, and load registered graphs that this process needs.

    Raises:
        UnknownNameError: unknown device or model.
    """
    for device in devices:
        get_device(device)
    missing = unknown_graphs(service, workloads)
    if missing:
        await service.read(load_graphs, service, missing)


async def without_unknown(service: Service, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot without GPUs of unknown types, with tenants of unknown workloads or with too many.

    The graph of such a tenant is no longer registered; the device file of such a type is gone; earlier
    versions accepted more tenants than a set may have jobs (`set_jobs`), which costs too much to predict.

    The same object if there are none, because policies remember it; the last answer is kept.

    Raises:
        UnknownNameError: no GPU remains.
    """
    kept, looked_at = service.pruned, snapshot.nodes
    if kept is not None and kept[2] == service.graph_changes:
        if kept[0] is snapshot:
            return kept[1]
        changed = changed_nodes(kept[0], snapshot) if kept[1] is kept[0] else None
        if changed is not None:  # nothing was missing before, so only changes need a check
            looked_at = tuple(snapshot.nodes[k] for k in changed)
    most = service.config.set_jobs
    size = sum(len(node.gpus) for node in looked_at)
    models, devices, crowded = await service.batcher.apart(size, _present, looked_at, most)
    missing = {model for model in models if not is_model(model) and model not in service.graphs}
    for model in sorted(missing):
        try:
            await service.read(load_graphs, service, {model.removeprefix(REGISTERED)})
            missing.discard(model)
        except UnknownNameError:
            log.warning("tenant of an unknown workload", workload=model[:100])
    strange = {device for device in devices if not is_known(device)}
    if strange:
        log.warning("GPUs of an unknown type", devices=sorted(strange)[:10])
    if crowded:
        log.warning("GPUs with too many tenants", gpus=crowded, most=most)
    pruned = snapshot
    if missing or strange or crowded:
        pruned = _without(
            snapshot,
            lambda gpu: (
                gpu.device in strange
                or len(gpu.tenants) > most
                or any(t.job.model in missing for t in gpu.tenants)
            ),
        )
        if not any(node.gpus for node in pruned.nodes):
            raise _nothing_known(missing, strange) if missing or strange else too_many(most)
    service.pruned = (snapshot, pruned, service.graph_changes)
    return pruned


def _present(nodes: Sequence[Node], most: int) -> tuple[set[str], set[str], int]:
    """Models of the tenants, device types, and the number of GPUs with more than `most` tenants."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    models = {tenant.job.model for gpu in gpus for tenant in gpu.tenants}
    return models, {gpu.device for gpu in gpus}, sum(len(gpu.tenants) > most for gpu in gpus)


def too_many(most: int, got: int | None = None) -> LimitError:
    """The error for a GPU with more tenants than a set may have jobs; without `got` for every GPU."""
    return LimitError(
        "a GPU has too many tenants" if got is not None else "every GPU has too many tenants",
        expected=f"at most {most} (set_jobs)",
        got=got,
        hint="remove tenants, or start the service with a higher --limit set_jobs",
    )


def _nothing_known(models: set[str], devices: set[str]) -> UnknownNameError:
    """The error for a cluster on which every GPU runs one of these models or has one of these types."""
    if devices:
        return UnknownNameError(
            "every GPU has an unknown type or runs a job of an unknown workload",
            expected="a GPU of a type of /v1/devices",
            got=", ".join(repr(name[:80]) for name in sorted(devices)[:3]),
            hint="set COTENANT_DEVICES to the file with these types and restart the service",
        )
    return UnknownNameError(
        "every GPU runs a job of an unknown workload",
        expected="models of the zoo, or graph:HASH of /v1/workloads",
        got=", ".join(repr(model[:80]) for model in sorted(models)[:3]),
        hint="register the graphs with POST /v1/workloads, or remove the tenants from the cluster",
    )


def without_unpredictable(service: Service, serving: Serving, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot without GPUs whose tenants `Batcher.meet` found unpredictable.

    One such tenant must not block every decision.

    The same object if there are none; the last answer is kept.

    Raises:
        InputError: no GPU remains.
    """
    told = service.batcher.unpredictable(serving)
    if not told:
        return snapshot
    kept = service.predictable
    if kept is not None and kept[0] is snapshot and kept[2] == len(told):
        return kept[1]
    pruned = _without(
        snapshot, lambda gpu: any((gpu.device, gpu.sharing, t.job) in told for t in gpu.tenants)
    )
    if pruned is not snapshot and not any(node.gpus for node in pruned.nodes):
        here = ((gpu.device, gpu.sharing, t.job) for _, gpu in snapshot.gpus() for t in gpu.tenants)
        raise InputError(
            "every GPU runs a job that cannot be predicted",
            expected="jobs that can run on their GPU as described",
            got=next(told[key] for key in here if key in told),
            hint="remove the tenants from the cluster, or correct them",
        )
    service.predictable = (snapshot, pruned, len(told))
    return pruned


def _without(snapshot: ClusterSnapshot, left_out: Callable[[Gpu], bool]) -> ClusterSnapshot:
    """The snapshot without some GPUs.

    Unaffected nodes are the same objects, and so is the snapshot if nothing is removed.
    """
    nodes = []
    for node in snapshot.nodes:
        gpus = tuple(gpu for gpu in node.gpus if not left_out(gpu))
        nodes.append(node if len(gpus) == len(node.gpus) else replace(node, gpus=gpus))
    same = all(now is before for now, before in zip(nodes, snapshot.nodes, strict=True))
    return snapshot if same else replace(snapshot, nodes=tuple(nodes))


async def admit_sets(service: Service, sets: list[ColocationSet]) -> None:
    """`admit` for whole sets."""
    await admit(service, {w for s in sets for w in s.workloads}, {s.device for s in sets})


async def predict_each(
    service: Service, sets: list[ColocationSet]
) -> dict[ColocationSet, Prediction | CotenantError]:
    """The prediction of each set, or its error; an unknown workload or a set too large fails only itself."""
    answers: dict[ColocationSet, Prediction | CotenantError] = {}
    for asked in sets:
        if len(asked.workloads) > service.config.set_jobs:
            answers[asked] = too_many(service.config.set_jobs, len(asked.workloads))
            continue
        try:
            await admit_sets(service, [asked])
        except UnknownNameError as error:
            answers[asked] = error
    known = [asked for asked in sets if asked not in answers]
    if known:
        answers.update(zip(known, await service.batcher.predict_each(known), strict=True))
    return answers


def load_graphs(service: Service, hashes: set[str]) -> None:
    """Load stored graphs into this process.

    Raises:
        UnknownNameError: one is not registered, or damaged.
    """
    absent = service.load_graphs({REGISTERED + key for key in hashes})
    if absent:
        damaged = service.damaged_graphs.get(min(absent))
        if damaged is not None:
            raise damaged.at(min(absent))
        raise not_registered(min(absent))


def not_registered(model: str) -> UnknownNameError:
    """The error for a job whose `graph:HASH` was never registered, or was deleted."""
    got = repr(model[: len(REGISTERED) + 80])
    return UnknownNameError("graph is not registered", expected="graph:HASH of /v1/workloads", got=got)


def forget_deleted(service: Service) -> None:
    """Drop the graphs that another process deleted."""
    held = [name.removeprefix(REGISTERED) for name in list(service.graphs)]
    for part in parts(held):
        with service.store.read() as session:
            stored = set(session.scalars(select(WorkloadRow.hash).where(WorkloadRow.hash.in_(part))))
        for key in set(part) - stored:
            forget(service, key)


def forget(service: Service, key: str) -> None:
    """Forget a stored graph in this process."""
    service.graphs.pop(REGISTERED + key, None)
    service.damaged_graphs.pop(REGISTERED + key, None)
    service.graph_changes += 1
    service.answers.clear()
    service.feedback.relearn()
