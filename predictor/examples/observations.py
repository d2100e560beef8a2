"""Observed step times, and sets that ran out of memory: read from a file and stored."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from datasets.sources import OBSERVED
from predictor.examples.out_of_memory import OutOfMemory, set_mapping
from profiling.devices import canonical, get_device, is_known
from profiling.errors import ConflictError, InputError
from profiling.files import check_once, not_csv, only_writer, read_json, user_folder, write_json
from profiling.names import one_of
from profiling.spelling import in_short
from profiling.workload import (
    LEAST_MEMORY_BYTES,
    ColocationSet,
    SoloProfile,
    Workload,
    check_step_time,
)

FORMAT, VERSION = "cotenant-feedback", 1
OF_DEVICE = ("memory_bytes", "utilization_ratio")
"""What can be observed of a job alone besides its step time."""
_OF_SET = ("device", "sharing", "jobs")
_GIVEN = (*_OF_SET, "job", "member", "step_time_s", *OF_DEVICE, "out_of_memory", "model_version")
# What the service says besides of an observation that it lists, or is told.
_LISTED = ("id", "predicted_step_time_s", "error_ratio", "covered", "observed_at", "placement_id")
CAMPAIGN = OBSERVED


@dataclass(frozen=True, slots=True)
class Observation:
    """An observed step time of a job; of a job alone, optionally also what it took of the device.

    Attributes:
        colocation_set: the device and all jobs on it.
        member: position of the observed job in the set.
        step_time_s: seconds per step.
        memory_bytes: what its process takes on the device; at most the device's memory.
        utilization_ratio: share of time in which a kernel ran, 0 to 1.
        model_version: of the model in use when it was made; empty if unknown.
    """

    colocation_set: ColocationSet
    member: int
    step_time_s: float
    memory_bytes: float | None = None
    utilization_ratio: float | None = None
    model_version: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if len(self.colocation_set.workloads) > 1:
            for name in self.of_device:
                raise InputError(
                    f"{name} is observed of jobs alone only",
                    expected="a set of one job",
                    got=f"{len(self.colocation_set.workloads)} jobs",
                )
        SoloProfile(memory_bytes=self.memory_bytes, utilization_ratio=self.utilization_ratio)
        if self.memory_bytes is not None and self.memory_bytes < LEAST_MEMORY_BYTES:
            raise InputError(
                "memory_bytes is out of range",
                expected=f"bytes, at least {LEAST_MEMORY_BYTES:g}",
                got=self.memory_bytes,
            )
        device = self.colocation_set.device
        # What does not fit cannot have run; the job would never be placed again.
        if self.memory_bytes is not None and is_known(device):
            most = get_device(device).memory_bytes
            if self.memory_bytes > most:
                raise InputError(
                    "memory_bytes exceeds the device's memory",
                    expected=f"at most {most:.6g} bytes on {device}",
                    got=f"{self.memory_bytes:.6g}",
                    hint="check that it is in bytes, and the device",
                )
        if not 0 <= self.member < len(self.colocation_set.workloads):
            raise InputError(
                "member is not a job of the set",
                expected=f"0 to {len(self.colocation_set.workloads) - 1}",
                got=self.member,
            )
        check_step_time(self.step_time_s)

    @property
    def workload(self) -> Workload:
        return self.colocation_set.workloads[self.member]

    def to_mapping(self) -> dict[str, Any]:
        """What was observed, without the model in use."""
        measured = {"member": self.member, "step_time_s": self.step_time_s, **self.of_device}
        return set_mapping(self.colocation_set) | measured

    @property
    def of_device(self) -> dict[str, float]:
        """What was observed besides the step time."""
        return {name: value for name in OF_DEVICE if (value := getattr(self, name)) is not None}


Report = Observation | OutOfMemory
"""What is reported of a set."""
R = TypeVar("R", bound=Report)


def report_of(values: Any) -> Report:
    """From `{"device", "sharing", "jobs": [SPEC, ...], "job": SPEC or "member": n, "step_time_s"}` and optionally
    `memory_bytes`, `utilization_ratio` and `model_version`; a job may also be an object with its options. The body of
    `POST /v1/observations` (`"of": {"device", ...}`) and the entries of its listing are read, too. With `out_of_memory`
    instead of `step_time_s`, the set ran out of memory.

    Raises:
        InputError: with what was expected.
    """
    if not isinstance(values, dict):
        raise InputError("not an observation", expected="an object", got=type(values).__name__)
    flat = {**values, **values["of"]} if isinstance(values.get("of"), dict) else values
    ran_out = _flag(flat.get("out_of_memory"))
    try:
        if not isinstance(flat["jobs"], list | tuple) or not flat["jobs"]:
            raise TypeError(f"jobs is {flat['jobs']!r}, not a list of jobs")
        jobs = [_job(value) for value in flat["jobs"]]
        colocation_set = ColocationSet(str(flat["device"]), tuple(jobs), flat.get("sharing") or "time-slice")
        version = str(flat.get("model_version") or "")
        if ran_out:
            also = {name: flat.get(name) for name in ("step_time_s", *OF_DEVICE)}
            return OutOfMemory.reported(colocation_set, also, version)
        # Via text, as in a CSV, because neither true nor 1.5 is a member.
        step = float(str(flat["step_time_s"]))
        more = {name: float(str(flat[name])) for name in OF_DEVICE if flat.get(name) not in (None, "")}
        if flat.get("member") not in (None, ""):
            member = int(str(flat["member"]))
        else:
            job = _job(flat["job"]) if flat.get("job") or len(jobs) > 1 else jobs[0]
            member = _member(job, jobs)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "not an observation",
            expected="device, jobs, one of them as job (or its number as member), step_time_s or out_of_memory",
            got=f"{type(error).__name__}: {error}",
        ) from None
    return Observation(colocation_set, member, step, **more, model_version=version)


def apart(reports: Iterable[Report]) -> tuple[list[Observation], list[OutOfMemory]]:
    """Observed step times, and sets that ran out of memory."""
    both = list(reports)
    observed = [one for one in both if isinstance(one, Observation)]
    return observed, [one for one in both if isinstance(one, OutOfMemory)]


def _flag(value: Any) -> bool:
    """Of JSON, or of a cell of a CSV."""
    text = str(value).strip().lower()
    if text not in ("none", "", "true", "false"):
        raise InputError("out_of_memory", expected="true or false", got=repr(value))
    return text == "true"


def _member(job: Workload, jobs: Sequence[Workload]) -> int:
    """The position of a job among `jobs`, however they are spelled; its own spelling first.

    Raises:
        InputError: it is not among them.
    """
    for spelled in (list(jobs), [in_short(one) for one in jobs]):
        for same in (job, in_short(job)):
            if same in spelled:
                return spelled.index(same)
    raise InputError("job is not in the set", expected="one of " + "; ".join(map(str, jobs)), got=job)


def _job(value: Any) -> Workload:
    return Workload.parse(value) if isinstance(value, str) else Workload.from_mapping(value)


def read_observations(path: Path | str) -> list[Report]:
    """Read a CSV (columns device, sharing, jobs, job or member, step_time_s and, optionally, memory_bytes,
    utilization_ratio, out_of_memory and model_version; jobs are separated by `;`) or a JSON file (a list, or an object
    with `observations` or `items`).

    Raises:
        InputError: with the invalid row.
    """
    source = Path(path)
    if source.suffix.lower() == ".json":
        body = read_json(source)
        if isinstance(body, dict):
            body = body.get("observations", body.get("items"))
    else:
        try:
            text = source.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise InputError(
                f"no file at {source}", expected="a .csv or .json file", hint="check the path"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{source} cannot be read", expected="a .csv or .json file", got=str(error)
            ) from None
        reader = csv.DictReader(io.StringIO(text), restval="")
        try:
            names = [name.strip() for name in reader.fieldnames or ()]
            check_once(source, names)
            reader.fieldnames = names
            body = list(reader)
        except csv.Error as error:
            raise not_csv(source, reader.line_num, error) from None
        for number, row in enumerate(body, 1):
            row.pop("", None)  # of a comma at the end of every line
            if any(row.pop(None, ())):  # type: ignore[call-overload]
                raise InputError(
                    f"{source}, row {number} is longer than the header",
                    expected=f"{len(names)} cells",
                    hint="quote a SPEC with several options",
                )
            row["jobs"] = [j.strip() for j in (row.get("jobs") or "").split(";") if j.strip()]
    if not isinstance(body, list) or not body:
        raise InputError(f"no observations in {source}", expected="a list of them, or rows with a header")
    result = []
    for number, one in enumerate(body, 1):
        try:
            if isinstance(one, dict):
                _check_names(one)
            result.append(report_of(one))
        except InputError as error:
            raise error.at(f"{source}, row {number}") from None
    return result


def _check_names(values: dict[str, Any]) -> None:
    """Raise `InputError` for a field that an observation does not have: a misspelt one would be ignored."""
    asked = values.get("of")
    for given, known in (
        (values, (*_GIVEN, *_LISTED, "of")),
        (asked if isinstance(asked, dict) else {}, _OF_SET),
    ):
        for name in given:
            if name not in known:
                raise InputError("unknown field", expected=one_of(name, known), got=repr(name))


def default_store() -> Path:
    """`$XDG_DATA_HOME/cotenant/feedback.json`, or the same under `~/.local/share`."""
    return user_folder("XDG_DATA_HOME", ".local/share") / "feedback.json"


def stored(store: Path | str) -> list[Report]:
    """Observations in `store`; none if the file does not exist.

    Entries from an earlier version that are no longer valid stay in the file and are skipped with a warning.

    Raises:
        InputError: the file is not such a store.
    """
    values = _body(Path(store))["observations"]
    result: list[Report] = []
    refused: list[str] = []
    for number, one in enumerate(values, 1):
        try:
            result.append(report_of(one))
        except InputError as error:
            refused.append(error.at(f"observation {number}").message)
    if refused:
        warnings.warn(
            f"{store}: {len(refused)} of {len(values)} observations were skipped, the first: {refused[0]}",
            stacklevel=2,
        )
    return result


def check_new(store: Path | str, observations: Sequence[Report]) -> None:
    """Raise `ConflictError` if exactly these observations were added to `store` before."""
    if _digest(observations) in _body(Path(store))["batches"]:
        raise ConflictError(
            "these observations are already recorded", hint="send every observation only once"
        )


def keep(
    store: Path | str,
    observations: Sequence[Report],
    first: Callable[[Sequence[Report]], None] = lambda _: None,
) -> None:
    """Add observations to `store` atomically.

    Args:
        first: called with all that the store will hold while no other process can add to it; if it fails, nothing is
            added.

    Raises:
        ConflictError: exactly these were added before, or another process holds the store's folder; nothing is
            changed.
    """
    with only_writer(Path(store).resolve().parent):  # by whichever link it is named
        check_new(store, observations)
        with warnings.catch_warnings(
            action="ignore"
        ):  # who asks for what is stored is told of refused entries
            earlier = stored(store)
        first([*earlier, *observations])
        body = _body(Path(store))
        body["observations"] += [o.to_mapping() | {"model_version": o.model_version} for o in observations]
        body["batches"].append(_digest(observations))
        write_json(store, body)


def _digest(observations: Sequence[Report]) -> str:
    batch = json.dumps([o.to_mapping() for o in observations], sort_keys=True)
    return hashlib.sha256(batch.encode()).hexdigest()


def _body(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"format": FORMAT, "version": VERSION, "batches": [], "observations": []}
    body = read_json(path)
    whole = isinstance(body, dict) and (body.get("format"), body.get("version")) == (FORMAT, VERSION)
    if not whole or not all(isinstance(body.get(k), list) for k in ("batches", "observations")):
        raise InputError(f"{path} is not a feedback store of this version", expected=f"{FORMAT} {VERSION}")
    return dict(body)


def in_order(observation: Observation) -> tuple[ColocationSet, int]:
    """The set with its members in short and sorted by SPEC, and the new position of the observed one."""
    colocation_set = observation.colocation_set
    jobs = [in_short(w) for w in colocation_set.workloads]
    order = sorted(range(len(jobs)), key=lambda k: (str(jobs[k]), k))
    members = tuple(jobs[k] for k in order)
    return ColocationSet(colocation_set.device, members, colocation_set.sharing), order.index(
        observation.member
    )


def set_id_of(colocation_set: ColocationSet) -> str:
    """Name of an observed set in `training_tables`, and in the manifest of a model that learned from it.

    It depends neither on the order of members nor on how they are spelled.
    """
    return _set_id(colocation_set, map(in_short, colocation_set.workloads))


def set_ids_of(colocation_set: ColocationSet) -> frozenset[str]:
    """`set_id_of` the set, and the name under which earlier versions learned from it, as it was spelled."""
    return frozenset((set_id_of(colocation_set), _set_id(colocation_set, colocation_set.workloads)))


def with_listed_device(set_id: str) -> str:
    """A name from a manifest with the device as the catalogue names it, which earlier versions kept as it was spelled."""
    campaign, *rest = set_id.split("/", 2)
    if campaign != CAMPAIGN or len(rest) < 2:
        return set_id
    return f"{campaign}/{canonical(rest[0])}/{rest[1]}"


def _set_id(colocation_set: ColocationSet, workloads: Iterable[Workload]) -> str:
    return (
        f"{CAMPAIGN}/{colocation_set.device}/{colocation_set.sharing}/{'+'.join(sorted(map(str, workloads)))}"
    )
