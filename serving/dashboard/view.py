"""Data for the pages, as plain values for the templates."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args
from urllib.parse import urlencode

from predictor.types import Prediction
from profiling.devices import device_names, get_device, split_device
from profiling.errors import CotenantError, InputError, UnknownNameError
from profiling.workload import SHARING_MODES, ColocationSet
from profiling.zoo import zoo_names
from scheduling.core.cards import card_of_slice
from scheduling.core.snapshot import Gpu, Node
from serving.dashboard.error_plot import error_plot
from serving.dashboard.health import LEVELS, Health, level_of, set_of
from serving.handlers.calibration import Point, by_job, recent
from serving.handlers.jobs import admit_sets, predict_each
from serving.handlers.models import events, state
from serving.handlers.observations import error_by_day, observations_of
from serving.handlers.outdated import cluster_outdated_s
from serving.handlers.placements import STALE, count_placements, get_placement, list_placements
from serving.schemas import PlacementState, job_of
from serving.service import Service

GIB = 2**30
PAGE_GPUS = 96
PAGE_PLACEMENTS = 15
MOST_ANSWERS = 12  # most answers side by side in a what-if
MOST_ALTERNATIVES = 5  # most distinct alternatives on a job's page
MOST_CALIBRATED = 20  # most rows in the table of errors
IN_USE, SHARED, ALL = "in use", "shared", "all"


@dataclass(frozen=True, slots=True)
class Tile:
    """One GPU of the cluster map; `prediction` is None if it is empty or cannot be predicted now."""

    id: str
    device: str
    sharing: str
    tenants: tuple[tuple[str, str, float], ...]  # job, job id, iterations left
    prediction: Prediction | None
    memory_bytes: float
    note: str = ""
    placements: tuple[str | None, ...] = ()
    assumed: bool = False  # its tenants may be on another GPU of the node, or not have started

    @property
    def level(self) -> str:
        return level_of(self.prediction, len(self.tenants))


@dataclass(frozen=True, slots=True)
class CardTiles:
    """The MIG slices of one GPU; or one unpartitioned GPU, with an empty `id`."""

    id: str
    device: str
    tiles: tuple[Tile, ...]


def by_card(tiles: list[Tile]) -> list[CardTiles]:
    """Group slices by GPU, in the order of each GPU's first slice.

    The id of a slice starts with its GPU, followed by `/` (`0/3g`), or by a point between two numbers
    (`0.1`). A slice whose id names no GPU is listed alone.
    """
    cards: dict[tuple[str, str, int], list[Tile]] = {}
    for number, tile in enumerate(tiles):
        card, part = split_device(tile.device)
        of = card_of_slice(tile.id) if part is not None else None
        key = (of, card, -1) if of is not None else ("", card, number)
        cards.setdefault(key, []).append(tile)
    return [CardTiles(name, card, tuple(on_card)) for (name, card, _), on_card in cards.items()]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which GPUs of the cluster and which observations to show; an empty field matches all.

    Attributes:
        node: part of the node name; device: GPU type; tenant: part of a tenant's id or SPEC.
        state: `in use`, `shared`, or a level of `serving.dashboard.health`.
        observed_device, observed_job: GPU type, and model of the measured job, of the observations.
        placed: state of the placements, or `not reporting`.
    """

    node: str = ""
    device: str = ""
    tenant: str = ""
    state: str = ""
    observed_device: str = ""
    observed_job: str = ""
    placed: str = ""

    def takes(self, node: Node, gpu: Gpu, level: str) -> bool:
        return (
            self.node.lower() in node.name.lower()
            and self.device in ("", gpu.device)
            and (
                not self.tenant
                or any(self.tenant.lower() in f"{t.job_id} {t.job}".lower() for t in gpu.tenants)
            )
            and (
                self.state in ("", level)
                or (self.state == IN_USE and bool(gpu.tenants))
                or (self.state == SHARED and len(gpu.tenants) > 1)
            )
        )

    @property
    def sparse(self) -> bool:
        """Whether it selects single GPUs rather than whole nodes."""
        return bool(self.tenant or self.state)

    def takes_observation(self, point: Point) -> bool:
        return self.observed_device in ("", point.device) and self.observed_job in ("", point.job)

    def query(self, first: int) -> str:
        """Query string of this filter starting at another GPU, for a link."""
        fields = {**{name: value for name, value in asdict(self).items() if value}, "first": first}
        return urlencode(fields)


async def overview(
    service: Service, health: Health, first: int = 0, shown_by: Filter = Filter()
) -> dict[str, Any]:
    """Cluster totals, the matching GPUs, the latest placements, the model and its error.

    The GPUs are those that match a filter, from number `first` on; the error over time, and by device and model, is of
    the observations that match it.
    """
    cluster = await service.read(service.cluster.current)
    apart, size = service.batcher.apart, sum(len(node.gpus) for node in cluster.snapshot.nodes)
    places = await apart(size, lambda: list(cluster.snapshot.gpus()))
    levels = await health.levels(service, [gpu for _, gpu in places])
    taken, totals = await apart(size, lambda: (_taken(places, levels, shown_by), _totals(places, levels)))
    first = min(first, max(0, len(taken) - 1) // PAGE_GPUS * PAGE_GPUS)  # the cluster may have shrunk
    shown = taken[first : first + PAGE_GPUS]
    tiles = await _tiles(service, [gpu for _, gpu in shown])
    nodes: dict[str, list[Tile]] = {}
    for (node, gpu), tile in zip(shown, tiles, strict=True):
        placed = tuple(seat.placement_id for seat in cluster.seats_on(node.name, gpu.id))
        nodes.setdefault(node.name, []).append(replace(tile, placements=placed, assumed=gpu.tenants_assumed))
    placements = await service.read(list_placements, service, shown_by.placed or None, 0, PAGE_PLACEMENTS)
    counts = await service.read(count_placements, service)
    observed = await service.read(recent, service)
    matching = [point for point in observed if shown_by.takes_observation(point)]
    return {
        "version": cluster.version,
        "outdated_s": await service.read(cluster_outdated_s, service),
        "nodes": {node: by_card(tiles) for node, tiles in nodes.items()},
        "totals": totals,
        "filter": shown_by,
        "devices": _with(shown_by.device, [name for name in totals if name != ALL]),
        "states": _with(shown_by.state, (IN_USE, SHARED, *LEVELS)),
        "first": first,
        "count": len(places),
        "matching": len(taken),
        "last": first + len(shown),
        "previous": shown_by.query(max(0, first - PAGE_GPUS)) if first else None,
        "next": shown_by.query(first + PAGE_GPUS) if first + PAGE_GPUS < len(taken) else None,
        "node_count": len(cluster.snapshot.nodes),
        "bare_nodes": sum(not node.gpus for node in cluster.snapshot.nodes),
        "now": time.time(),
        "counts": counts,
        "placed_states": _with(shown_by.placed, (*get_args(PlacementState), STALE)),
        "placements": [p | {"why": [*why(p), *never_measured(p)]} for p in placements],
        "model": state(service),
        "events": await service.read(events, service, 0, 5),
        "errors": await service.read(error_by_day, service),
        "observed_devices": _with(shown_by.observed_device, sorted({p.device for p in observed})),
        "observed_jobs": _with(shown_by.observed_job, sorted({p.job for p in observed})),
        "observed": len(observed),
        "plot": error_plot(matching),
        "calibration": by_job(matching)[:MOST_CALIBRATED],
    }


def _with(chosen: str, names: Iterable[str]) -> list[str]:
    """Names to choose from; first the one that is chosen, if it is no longer one of them."""
    names = list(names)
    return names if chosen in ("", *names) else [chosen, *names]


def _taken(places: list[tuple[Node, Gpu]], levels: list[str], shown_by: Filter) -> list[tuple[Node, Gpu]]:
    """The GPUs that match the filter."""
    return [
        (node, gpu)
        for (node, gpu), level in zip(places, levels, strict=True)
        if shown_by.takes(node, gpu, level)
    ]


def _totals(places: list[tuple[Node, Gpu]], levels: list[str]) -> dict[str, dict[str, int]]:
    """Number of GPUs, in use, shared, and at each level: by device type, with the total last."""
    rows: dict[str, dict[str, int]] = {}
    for (_, gpu), level in zip(places, levels, strict=True):
        for name in (gpu.device, ALL):
            row = rows.setdefault(name, dict.fromkeys(("GPUs", IN_USE, SHARED, *LEVELS), 0))
            row["GPUs"] += 1
            row[IN_USE] += bool(gpu.tenants)
            row[SHARED] += len(gpu.tenants) > 1
            row[level] += 1
    if ALL in rows:
        rows[ALL] = rows.pop(ALL)
    return rows


def why(placement: dict[str, Any]) -> list[str]:
    """The reasons for the chosen GPU, or for waiting."""
    decision = placement["decision"]
    ranked = decision.get("ranked", [])
    if decision.get("decision") == "wait" or not ranked:
        return list(decision.get("reasons", []))
    return [*ranked[0]["reasons"], *decision.get("reasons", [])]


def never_measured(placement: dict[str, Any]) -> list[str]:
    """What was never measured of the decision; earlier versions did not store it."""
    return list(placement["decision"].get("never_measured", []))


def alternatives(ranked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Distinct answers, with the number of `more` like each.

    On a large cluster the best GPUs are often equal.
    """
    kinds: dict[tuple[float, tuple[str, ...]], dict[str, Any]] = {}
    for one in ranked:
        kind = (one["score"], tuple(one["reasons"]))
        if kind in kinds:
            kinds[kind]["more"] += 1
        else:
            kinds[kind] = one | {"more": 0}
    return list(kinds.values())[:MOST_ALTERNATIVES]


async def job(service: Service, key: str) -> dict[str, Any]:
    """One placement: reasons, alternatives, expected completion, observed against predicted step times.

    Raises:
        UnknownNameError: no placement has that id.
    """
    entry = await service.read(get_placement, service, key)
    ranked = entry["decision"].get("ranked", [])
    tenant, prediction, gpu = None, None, None
    never = never_measured(entry)
    cluster = await service.read(service.cluster.current)
    for position, seat in enumerate(cluster.seats_on(entry["node"] or "", entry["gpu"] or "")):
        if seat.placement_id == key:
            node = cluster.snapshot.nodes[cluster.place_of[entry["node"]]]
            gpu = next(g for g in node.gpus if g.id == entry["gpu"])
            tenant = (position, gpu.tenants[position])
    if gpu is not None and tenant is not None:
        tile = (await _tiles(service, [gpu]))[0]
        if tile.prediction:
            prediction, never = tile.prediction.members[tenant[0]], list(tile.prediction.never_measured)
    left_s = tenant[1].iterations_left * prediction.step_time_s.value if tenant and prediction else None
    return {
        "entry": entry,
        "why": why(entry),
        "alternatives": alternatives(ranked[1:] if entry["decision"].get("decision") == "place" else ranked),
        "others": [str(t.job_id or t.job) for k, t in enumerate(gpu.tenants) if tenant and k != tenant[0]]
        if gpu
        else [],
        "iterations_left": tenant[1].iterations_left if tenant else None,
        "prediction": prediction,
        "never_measured": never,
        "left_s": left_s,
        "observations": await service.read(observations_of, service, key),
    }


async def what_if(service: Service, devices: list[str], jobs: str, modes: list[str]) -> dict[str, Any]:
    """The form's values, and a prediction for each device and sharing mode, or the error."""
    page: dict[str, Any] = {
        "chosen": devices,
        "jobs": jobs,
        "chosen_modes": modes,
        "devices": device_names(),
        "modes": SHARING_MODES,
        "zoo": sorted(zoo_names()),
        "answers": [],
        "problem": None,
    }
    specs = [line.strip() for line in jobs.splitlines() if line.strip()]
    if not specs:
        return page
    try:
        if len(specs) > service.config.set_jobs:
            raise InputError("too many jobs", expected=f"at most {service.config.set_jobs}", got=len(specs))
        if len(devices) * len(modes) > MOST_ANSWERS:
            raise InputError(
                "too many devices and sharing modes",
                expected=f"at most {MOST_ANSWERS} together",
                got=len(devices) * len(modes),
            )
        members = tuple(map(job_of, specs))
        asked = [ColocationSet(device, members, mode) for device in devices for mode in modes]
        service.life.current()
        await admit_sets(service, asked)
        each = await service.batcher.predict_each(asked)
    except CotenantError as error:
        return page | {"problem": error.message}
    # A job may be impossible on some of the devices only (its precision, MIG slices).
    predictions = [answer for answer in each if isinstance(answer, Prediction)]
    page["problem"] = (
        "; ".join(dict.fromkeys(e.message for e in each if isinstance(e, CotenantError))) or None
    )
    if not predictions:
        return page
    largest = max(m.slowdown.upper for p in predictions for m in p.members)
    return page | {
        "answers": [(p, get_device(p.device).memory_bytes) for p in predictions],
        "scale": max(2.0, largest),
    }


async def _tiles(service: Service, gpus: list[Gpu]) -> list[Tile]:
    asked = {(g.device, g.sharing, g.tenants): set_of(g) for g in gpus if g.tenants}
    answers: dict[Any, Prediction | CotenantError] = {}
    try:
        each = await predict_each(service, list(dict.fromkeys(asked.values())))
        answers.update((key, each[one]) for key, one in asked.items())
    except CotenantError as error:
        answers = dict.fromkeys(asked, error)
    tiles = []
    for gpu in gpus:
        tenants = tuple((str(t.job), t.job_id, t.iterations_left) for t in gpu.tenants)
        answer = answers.get((gpu.device, gpu.sharing, gpu.tenants))
        prediction, note = (None, answer.message) if isinstance(answer, CotenantError) else (answer, "")
        memory = 0.0
        try:
            memory = get_device(gpu.device).memory_bytes
        except UnknownNameError as error:
            note = error.message  # a type from a device file that existed when the cluster was stored
        tiles.append(Tile(gpu.id, gpu.device, gpu.sharing, tenants, prediction, memory, note))
    return tiles
