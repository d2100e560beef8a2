"""Looks up the devices and models named in a user's rows, and stores them in the catalogue's spelling."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from datasets.derived import columns_of
from datasets.tables import Fault
from profiling.capture import cache, local_workload
from profiling.capture.naming import captured_from, check_model, is_graph_only
from profiling.capture.options import as_captured
from profiling.collections import check_stored, collection_of, default_job
from profiling.devices import get_device
from profiling.errors import CotenantError, InputError, shortened, without_name
from profiling.spelling import in_short
from profiling.workload import REGISTERED, Workload
from profiling.zoo import get_model, resolve

if TYPE_CHECKING:
    import pandas as pd

_ANY_MODEL = "a model of `cotenant zoo list`, or your own: module:factory, FILE.onnx, a captured graph.json"

_NO_MEASUREMENTS = "a SPEC without measurements (columns hold them: solo_step_time_s here, or table solo)"


def with_captured_models(frame: pd.DataFrame) -> pd.DataFrame:
    """Replace SPECs of custom models by those of their captured graphs, with all options of the capture.

    A captured graph has a precision and a batch size of its own, which a row's other columns must not contradict.
    `architecture`, if empty, keeps the given name, but that of the model for a file or hash of its graph: several
    captures, as at several batch sizes, are one architecture. SPECs that cannot be captured stay; `with_known_names` reports
    them. This runs the code named in `workload`.

    Args:
        frame: rows of any table, as read.
    """
    if "workload" not in frame:
        return frame
    frame = frame.copy()
    frame["workload"] = frame["workload"].astype(object)
    for spec in frame["workload"].dropna().unique():
        try:
            given = Workload.parse(str(spec))
            job = local_workload(str(spec))
        except (CotenantError, OSError):
            continue
        if job.model == given.model or given != given.without_solo():
            continue
        rows = frame["workload"] == spec
        if "architecture" not in frame:
            frame["architecture"] = None
        named = frame["architecture"].notna() & (frame["architecture"].astype(str).str.strip() != "")
        name = (captured_from(job.model) if is_graph_only(given.model) else None) or given.model
        frame["architecture"] = frame["architecture"].astype(object).where(named | ~rows, name)
        frame.loc[rows, "workload"] = str(job)
    return frame


def with_known_devices(frame: pd.DataFrame) -> pd.DataFrame:
    """Spell devices as the catalogue does; unknown ones stay, and `with_known_names` reports them.

    Args:
        frame: rows of any table, as read.
    """
    if "device" not in frame:
        return frame
    names: dict[object, str] = {}
    for device in frame["device"].dropna().unique():
        with suppress(InputError):
            names[device] = get_device(str(device)).name
    return frame.assign(device=frame["device"].map(lambda device: names.get(device, device)))


def with_known_names(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Fault]]:
    """Look up the devices and models of a typed table.

    Zoo models get the catalogue's spelling, and a job's defaults are left out of its SPEC, so that all
    rows of a job have one spelling.

    Args:
        frame: rows of any table, typed, without faults, `with_captured_models` and `with_known_devices`.

    Returns:
        the rows with those names, and a fault for each row with an unknown device or model, with an option that its
        model or device cannot have, or with another batch or image size than its model's default if the SPEC states
        none.
    """
    frame, faults = frame.copy(), []
    if "device" in frame:
        for device in frame["device"].unique():
            try:
                get_device(device)
            except InputError as error:
                expected = error.expected or "a device of `cotenant devices list`"
                hint = f" ({error.hint})" if error.hint else ""
                faults += _of_rows(frame, "device", device, expected + hint, repr(device))
    if "workload" in frame:
        for spec in frame["workload"].dropna().unique():
            try:
                known = _known(Workload.parse(spec), spec)
            except (CotenantError, OSError) as error:
                expected = getattr(error, "expected", None) or _ANY_MODEL
                said = getattr(error, "detail", None) or str(error)
                got = f"{spec!r}: {without_name(said, _model_of(spec))}"
                faults += _of_rows(frame, "workload", spec, expected, got)
                continue
            faults += _other_sizes(frame, spec, known)
            _rename(frame, spec, known)
    if not faults and {"device", "workload"} <= set(frame):
        faults = _lacking_precisions(frame)
    return frame, faults


def _model_of(spec: str) -> str:
    """The model of a SPEC; a malformed SPEC itself."""
    with suppress(InputError):
        return Workload.parse(spec).model
    return spec


def _of_rows(frame: pd.DataFrame, column: str, value: str, expected: str, got: str) -> list[Fault]:
    return [Fault(int(row) + 1, column, expected, got) for row in frame.index[frame[column] == value]]


def _known(workload: Workload, spec: str) -> Workload:
    """The job under its catalogue name, or the hash of its captured graph.

    Raises:
        InputError: unknown model, it cannot be captured here, it cannot have one of the options, or the SPEC states
            measurements.
    """
    if workload != workload.without_solo():
        raise InputError("a SPEC in a table has options only", expected=_NO_MEASUREMENTS)
    job = local_workload(spec)  # reports what cannot be captured
    if not job.model.startswith(REGISTERED):
        check_model(job)
        if "/" not in job.model:
            job = replace(workload, model=get_model(job.model).name)
    _check_options(job)
    return job


def _check_options(job: Workload) -> None:
    """Check what only the graph can tell: one such row would fail the training on the whole table.

    Raises:
        InputError: an option that the model's graph cannot have, such as more frozen layers than it has.
    """
    if collection_of(job.model):
        check_stored(job)
    if not job.frozen_prefix:  # graphs of the zoo take a while, and have nothing else to check
        return
    from profiling.capture import graph_for

    as_captured(job, graph_for(job.captured()))


def _other_sizes(frame: pd.DataFrame, spec: str, job: Workload) -> list[Fault]:
    """Rows whose batch or image size is not that of `job`; empty cells of the batch size are filled."""
    faults = []
    rows = frame["workload"] == spec
    for column, size in _sizes(job).items():
        if column not in frame:
            continue
        other = rows & frame[column].notna()
        if size is None:
            said = f"nothing, because {shortened(spec, 60)!r} has one {column} only"
        else:
            other &= frame[column] != size
            said = (
                f"{size}, the {column} of {shortened(spec, 60)!r} (state another in the SPEC: {column}=...)"
            )
        faults += [
            Fault(int(row) + 1, column, said, str(frame.loc[row, column]))
            for row in frame.index[other.fillna(False)]
        ]
        if column == "batch_size":
            frame.loc[rows & frame[column].isna(), column] = size
    return faults


def _sizes(job: Workload) -> dict[str, int | None]:
    """Samples per step and GPU, and pixels along a side (None: it has no choice), the model's defaults included."""
    if job.model.startswith(REGISTERED):
        return {"batch_size": cache.registered(job.model).batch_size}
    full = default_job(job.model) if collection_of(job.model) else resolve(job)
    return {name: getattr(job, name) or getattr(full, name) for name in ("batch_size", "image_size")}


def _lacking_precisions(frame: pd.DataFrame) -> list[Fault]:
    """Rows in a precision that their device lacks: one such row would fail the training on the whole table."""
    faults = []
    for (device, spec), rows in frame.groupby(["device", "workload"], sort=False):
        try:
            get_device(str(device)).check_precision(Workload.parse(str(spec)).precision)
        except InputError as error:
            faults += [
                Fault(int(row) + 1, "workload", str(error.expected), f"{spec!r}: {error.got}")
                for row in rows.index
            ]
    return faults


def _rename(frame: pd.DataFrame, spec: str, job: Workload) -> None:
    """Replace `spec` by the one spelling of `job`, and update the columns derived from it."""
    short = str(in_short(job))
    if spec == short:
        return
    rows = frame["workload"] == spec
    frame.loc[rows, "workload"] = short
    follows = dict(columns_of(str(job)))
    # A custom model at several batch sizes has several graphs, but is one architecture.
    if job.model.startswith(REGISTERED):
        del follows["architecture"], follows["batch_size"]
    elif "architecture" in frame:
        own = rows & (frame["architecture"] != Workload.parse(spec).model)
        follows["architecture"] = frame.loc[rows, "architecture"].where(own[rows], job.model)
    for column, value in follows.items():
        if column in frame and value is not None:
            frame.loc[rows, column] = value
