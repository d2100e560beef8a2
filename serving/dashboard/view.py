"""What the pages show, as plain values for the templates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from predictor.types import Prediction
from profiling.devices import device_names, get_device
from profiling.errors import CotenantError, InputError
from profiling.workload import SHARING_MODES, ColocationSet
from scheduling.core.snapshot import Gpu
from serving.handlers.cluster import stored_state
from serving.handlers.jobs import admit_sets, zoo
from serving.handlers.models import events, state
from serving.handlers.observations import error_by_day
from serving.handlers.placements import list_placements
from serving.schemas import job_of
from serving.service import Service

GIB = 2**30
PAGE_GPUS = 200


@dataclass(frozen=True, slots=True)
class Tile:
    """One GPU of the cluster map; `prediction` is None where it is empty or cannot be predicted now."""

    id: str
    device: str
    sharing: str
    tenants: tuple[tuple[str, str, float], ...]  # job, job id, iterations left
    prediction: Prediction | None
    memory_bytes: float
    note: str = ""

    @property
    def worst(self) -> float:
        """Largest predicted slowdown of a tenant."""
        return (
            max((m.slowdown.value for m in self.prediction.members), default=1.0) if self.prediction else 1.0
        )

    @property
    def level(self) -> str:
        """How bad that is, in words that are shown as well as coloured."""
        if not self.tenants:
            return "empty"
        if self.prediction and not self.prediction.fits:
            return "too large"
        return "unhurt" if self.worst < 1.1 else "slowed" if self.worst < 1.5 else "crowded"


async def overview(service: Service, first: int = 0) -> dict[str, Any]:
    """The cluster from GPU number `first` on, the latest placements, the model and its error."""
    cluster = await service.read(stored_state, service)
    snapshot, version = cluster.snapshot, cluster.version
    places = list(snapshot.gpus())
    shown = places[first : first + PAGE_GPUS]
    tiles = await _tiles(service, [gpu for _, gpu in shown])
    nodes: dict[str, list[Tile]] = {}
    for (node, _), tile in zip(shown, tiles, strict=True):
        nodes.setdefault(node.name, []).append(tile)
    return {
        "version": version,
        "nodes": nodes,
        "first": first,
        "count": len(places),
        "previous": max(0, first - PAGE_GPUS) if first else None,
        "next": first + PAGE_GPUS if first + PAGE_GPUS < len(places) else None,
        "busy": sum(bool(gpu.tenants) for _, gpu in places),
        "placements": await service.read(list_placements, service, None, 0, 15),
        "model": state(service),
        "events": await service.read(events, service, 0, 5),
        "errors": await service.read(error_by_day, service),
    }


async def what_if(service: Service, device: str, jobs: str, sharing: str) -> dict[str, Any]:
    """The form's values, and the prediction or what is wrong with them."""
    page: dict[str, Any] = {
        "device": device,
        "jobs": jobs,
        "sharing": sharing,
        "devices": device_names(),
        "modes": SHARING_MODES,
        "zoo": sorted(zoo()),
        "prediction": None,
        "problem": None,
    }
    specs = [line.strip() for line in jobs.splitlines() if line.strip()]
    if not specs:
        return page
    try:
        if len(specs) > service.config.set_jobs:
            raise InputError("too many jobs", expected=f"at most {service.config.set_jobs}", got=len(specs))
        asked = ColocationSet(device, tuple(map(job_of, specs)), sharing)
        service.life.current()
        await admit_sets(service, [asked])
        prediction = await service.batcher.predict(asked)
    except CotenantError as error:
        return page | {"problem": error.message}
    largest = max(m.slowdown.upper for m in prediction.members)
    return page | {
        "prediction": prediction,
        "memory_bytes": get_device(device).memory_bytes,
        "scale": max(2.0, largest),
    }


async def _tiles(service: Service, gpus: list[Gpu]) -> list[Tile]:
    asked = {
        (g.device, g.sharing, g.tenants): ColocationSet(g.device, tuple(t.job for t in g.tenants), g.sharing)
        for g in gpus
        if g.tenants
    }
    predictions: dict[Any, Prediction] = {}
    note = ""
    try:
        await admit_sets(service, list(asked.values()))
        answers = await service.batcher.predict_many(list(asked.values())) if asked else []
        predictions = dict(zip(asked, answers, strict=True))
    except CotenantError as error:
        note = error.message
    tiles = []
    for gpu in gpus:
        tenants = tuple((str(t.job), t.job_id, t.iterations_left) for t in gpu.tenants)
        prediction = predictions.get((gpu.device, gpu.sharing, gpu.tenants))
        memory = get_device(gpu.device).memory_bytes
        tiles.append(
            Tile(gpu.id, gpu.device, gpu.sharing, tenants, prediction, memory, note if tenants else "")
        )
    return tiles
