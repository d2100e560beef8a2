"""Looks up the devices and models named in a user's rows, and stores them in the catalogue's spelling."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from datasets.derived import columns_of
from datasets.tables import Fault
from profiling.capture import local_workload
from profiling.capture.naming import check_model
from profiling.devices import get_device
from profiling.errors import CotenantError, InputError
from profiling.spelling import in_short
from profiling.workload import REGISTERED, Workload
from profiling.zoo import get_model

if TYPE_CHECKING:
    import pandas as pd

_ANY_MODEL = "a model of `cotenant zoo list`, or your own: module:factory, FILE.onnx, a captured graph.json"

_NO_MEASUREMENTS = "a SPEC without measurements (columns hold them: solo_step_time_s here, or table solo)"


def with_known_names(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Fault]]:
    """Look up the devices and models of a typed table.

    Devices and zoo models get the catalogue's spelling, and a job's defaults are left out, so that all rows of a job
    have one spelling. A custom model (code, a file, or the hash of a captured graph) is captured now. Its SPEC
    becomes that of the graph, which can be read without the code; `architecture` keeps the given name. This runs the
    code named in `workload`.

    Args:
        frame: rows of any table, typed and without faults.

    Returns:
        the rows with those names, and a fault for each row with an unknown device or model.
    """
    frame, faults = frame.copy(), []
    if "device" in frame:
        names: dict[str, str] = {}
        for device in frame["device"].unique():
            try:
                names[device] = get_device(device).name
            except InputError as error:
                expected = error.expected or "a device of `cotenant devices list`"
                hint = f" ({error.hint})" if error.hint else ""
                faults += _of_rows(frame, "device", device, expected + hint, repr(device))
        frame["device"] = frame["device"].map(lambda device: names.get(device, device)).astype("str")
    if "workload" in frame:
        for spec in frame["workload"].dropna().unique():
            try:
                known = _known(Workload.parse(spec), spec)
            except (CotenantError, OSError) as error:
                expected = getattr(error, "expected", None) or _ANY_MODEL
                got = f"{spec!r}: {getattr(error, 'detail', None) or error}"
                faults += _of_rows(frame, "workload", spec, expected, got)
                continue
            _rename(frame, spec, known)
    return frame, faults


def _of_rows(frame: pd.DataFrame, column: str, value: str, expected: str, got: str) -> list[Fault]:
    return [Fault(int(row) + 1, column, expected, got) for row in frame.index[frame[column] == value]]


def _known(workload: Workload, spec: str) -> Workload:
    """The job under its catalogue name, or the hash of its captured graph.

    Raises:
        InputError: unknown model, it cannot be captured here, or the SPEC states measurements.
    """
    if workload != workload.without_solo():
        raise InputError("a SPEC in a table has options only", expected=_NO_MEASUREMENTS)
    job = local_workload(spec)
    if not job.model.startswith(REGISTERED):
        check_model(job)
        if "/" not in job.model:
            job = replace(workload, model=get_model(job.model).name)
    return job


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
        del follows["architecture"]
    elif "architecture" in frame:
        own = rows & (frame["architecture"] != Workload.parse(spec).model)
        follows["architecture"] = frame.loc[rows, "architecture"].where(own[rows], job.model)
    for column, value in follows.items():
        if column in frame and value is not None:
            frame.loc[rows, column] = value
