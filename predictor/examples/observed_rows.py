"""Observations as rows for the next training: tidy `colocation` and `solo` tables."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from predictor.examples.observations import CAMPAIGN, Observation, Report, apart, in_order, keep, set_id_of
from profiling.devices import leaves_slices_open
from profiling.errors import ConflictError
from profiling.files import only_writer, read_json, write_json
from profiling.workload import SOLO_KEYS, ColocationSet, Workload

if TYPE_CHECKING:
    import pandas as pd

ORIGINS = "feedback-origins.json"
"""Beside the tables: where the observations are stored from which their rows were made."""

# Device, whether the job ran in some slice of that card, job. Rows of `solo` are about whole devices.
_Place = tuple[str, bool, Workload]


def training_tables(observations: Sequence[Observation]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tidy `colocation` and `solo` rows for the next training, with jobs `in_short`; repeats become their median.

    A ratio needs the job's solo step time, from its SPEC, else from another SPEC of it, else from an observation of it
    alone on that device; members without one, and unobserved ones, are partners (`is_target` false). Sets without a
    target are skipped, with a warning that says how many. What was observed of a job alone in a slice of a card serves
    sets in slices only.
    """
    from datasets.tables import make_table

    seen: dict[ColocationSet, dict[int, list[float]]] = {}
    of_device: dict[ColocationSet, dict[str, list[float]]] = {}
    for o in observations:
        colocation_set, member = in_order(o)
        seen.setdefault(colocation_set, {}).setdefault(member, []).append(o.step_time_s)
        for name, value in o.of_device.items():
            of_device.setdefault(colocation_set, {}).setdefault(name, []).append(value)
    solo = _alone(seen, of_device)
    origin = {"source": CAMPAIGN, "campaign": CAMPAIGN, "licence": "private", "origin": "measured"}
    rows, skipped = [], 0
    for colocation_set, times in seen.items():
        alone = [
            w.solo.step_time_s or solo.get(_place(colocation_set, w), {}).get("step_time_s")
            for w in colocation_set.workloads
        ]
        if len(colocation_set.workloads) == 1:
            continue
        if not any(alone[i] for i in times):
            skipped += 1
            continue
        for index, workload in enumerate(colocation_set.workloads):
            base = alone[index]
            step = float(median(times[index])) if index in times else None
            target = base is not None and step is not None
            rows.append(
                {
                    **origin, **_columns(colocation_set.device, workload), "set_id": set_id_of(colocation_set),
                    "member": index, "sharing": colocation_set.sharing, "step_time_s": step, "solo_step_time_s": base,
                    # The table requires a number; it is never read for partners.
                    "throughput_ratio": base / step if base is not None and step is not None else 1.0,
                    "censored": False, "is_target": target,
                }
            )  # fmt: skip
    if skipped:
        warnings.warn(
            f"no rows of {skipped} of {sum(len(s.workloads) > 1 for s in seen)} observed sets, because a slowdown needs the "
            "solo step time of the job: observe each job alone on its device, too, or state step_time_s in its SPEC",
            stacklevel=3,
        )
    alone_rows = [
        {**origin, **_columns(device, workload), **values, "gpus": 1}
        for (device, in_slice, workload), values in solo.items()
        if not in_slice
    ]
    return make_table("colocation", rows), make_table("solo", alone_rows)


def _alone(
    seen: dict[ColocationSet, dict[int, list[float]]], of_device: dict[ColocationSet, dict[str, list[float]]]
) -> dict[_Place, dict[str, float]]:
    """What is known of each job alone, as medians; what SPECs state has precedence over what was observed."""
    stated: dict[_Place, dict[str, list[float]]] = {}
    observed: dict[_Place, dict[str, list[float]]] = {}
    for colocation_set in sorted(seen, key=lambda s: len(s.workloads)):
        for workload in colocation_set.workloads:
            for name in SOLO_KEYS:
                value = getattr(workload.solo, name)
                if value is not None:
                    own = stated.setdefault(_place(colocation_set, workload), {})
                    own.setdefault(name, []).append(value)
        if len(colocation_set.workloads) == 1:
            own = observed.setdefault(_place(colocation_set, colocation_set.workloads[0]), {})
            values = {"step_time_s": seen[colocation_set][0], **of_device.get(colocation_set, {})}
            for name, some in values.items():
                own.setdefault(name, []).extend(some)
    return {
        place: {
            name: float(median(values))
            for name, values in {**observed.get(place, {}), **stated.get(place, {})}.items()
        }
        for place in {**observed, **stated}
    }


def _place(colocation_set: ColocationSet, workload: Workload) -> _Place:
    device = colocation_set.device
    return device, leaves_slices_open(device, colocation_set.sharing), workload.without_solo()


def keep_with_rows(store: Path, new: Sequence[Report], directory: Path) -> dict[str, int]:
    """Add observations to `store`, and all that it then holds to a folder of tables (`write_training_tables`).

    The rows come first: should they fail, nothing is added to the store, and the observations can be given again. No other
    process adds to the store meanwhile, whose rows would be lacking.

    Raises:
        ConflictError: exactly these were added before, or as `write_training_tables`.
    """
    written: dict[str, int] = {}

    def write(told: Sequence[Report]) -> None:
        origins = [str(store.resolve())]
        written.update(write_training_tables(apart(told)[0], directory, origins, held=store.resolve().parent))

    keep(store, new, write)
    return written


def write_training_tables(
    observations: Sequence[Observation],
    directory: Path | str,
    origins: Sequence[str],
    held: Path | None = None,
) -> dict[str, int]:
    """Write `training_tables` to a folder of tables.

    They replace rows of earlier observations; rows of other sources stay.

    Args:
        origins: where the observations are stored: files or databases, by any names that stay the same.
        held: a folder of which the caller is the only writer.

    Returns:
        number of rows by table. Where all are 0, nothing is written.

    Raises:
        InputError: a table of `directory` is damaged; nothing is written.
        ConflictError: another process holds the folder for minutes, or its rows are of observations stored elsewhere.
    """
    from datasets.importers import replace_rows

    tables = dict(zip(("colocation", "solo"), training_tables(observations), strict=True))
    kept = {name: frame for name, frame in tables.items() if len(frame)}
    if kept:
        is_held = held is not None and held.resolve() == Path(directory).resolve()
        with nullcontext() if is_held else only_writer(directory):
            _check_origins(Path(directory), origins)
            # First, so that a kill in between leaves no rows of unknown origin.
            write_json(Path(directory) / ORIGINS, sorted(set(origins)))
            replace_rows(CAMPAIGN, kept, directory)
    return {name: len(frame) for name, frame in tables.items()}


def _check_origins(directory: Path, origins: Sequence[str]) -> None:
    """Raise `ConflictError` if the folder has rows of observations that are stored elsewhere, which would be lost."""
    from datasets.tables import available_tables, sources_of

    path = directory / ORIGINS
    if not any(CAMPAIGN in sources_of(directory, t) for t in available_tables(directory)):
        return
    if not path.exists():
        warnings.warn(
            f"{directory} had rows of observations, without a {ORIGINS} that says whose: they are replaced",
            stacklevel=4,
        )
        return
    others = sorted(set(map(str, read_json(path))) - set(origins))
    if others:
        raise ConflictError(
            f"{directory} has rows of other observations, which would be lost",
            expected=f"observations of {', '.join(others)}",
            got=", ".join(origins),
            hint=f"choose another folder, export all databases together (--also), or delete {path} to replace the rows",
        )


def _columns(device: str, workload: Workload) -> dict[str, Any]:
    return {
        "device": device, "workload": str(workload.without_solo()), "architecture": workload.model,
        "batch_size": workload.batch_size, "precision": workload.precision,
    }  # fmt: skip
