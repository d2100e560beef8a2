"""`RunRequest`: a single measurement run, identified by its content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from profiling.capture.naming import is_graph_only
from profiling.errors import InputError
from profiling.measure.settings import MeasureSettings
from profiling.workload import PREDICTED_PRECISIONS, SHARING_MODES, Workload

# Options that the measured step does not follow: it trains, in torch, eagerly, in the model's own memory layout.
_NOT_MEASURED = ("mode", "framework", "compiler", "memory_layout")
KINDS = ("solo", "colocation", "freezing", "operators", "ddp")
DEVICES = ("cpu", "cuda")


class NotMeasurableError(InputError):
    """A job has no code to run, code that builds no job, or an option that its measured step would not follow."""


@dataclass(frozen=True)
class RunRequest:
    """One run.

    Attributes:
        kind: `solo` (one job alone), `colocation` (2..n jobs, each alone and all together), `freezing` (one job with
            its frozen prefix), `operators` (time per operator of one job), `ddp` (one job on several GPUs).
        workloads: the members.
        device: `cpu` or `cuda`.
        sharing: requested sharing mode; the record states the one in force.
        cached_activations: (freezing) outputs of the frozen layers come from a cache.
        processes: (ddp) GPUs, one process each.
        rewrapped: (ddp) wrap after freezing, so that frozen gradients are not all-reduced; otherwise before.
    """

    kind: str
    workloads: tuple[Workload, ...]
    device: str = "cpu"
    sharing: str = "time-slice"
    cached_activations: bool = False
    processes: int = 1
    rewrapped: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError("unknown kind of run", expected="one of " + ", ".join(KINDS), got=self.kind)
        if self.device not in DEVICES:
            raise InputError(
                "unknown device to measure on", expected="one of " + ", ".join(DEVICES), got=self.device
            )
        if self.sharing not in SHARING_MODES:
            raise InputError(
                "unknown sharing mode", expected="one of " + ", ".join(SHARING_MODES), got=self.sharing
            )
        if self.sharing != "mps" and any(w.sm_share_ratio < 1 for w in self.workloads):
            raise InputError("SM shares require MPS", expected="sharing mps", got=self.sharing)
        count = len(self.workloads)
        if count == 0 or (self.kind == "colocation") != (count > 1):
            expected = "2 or more jobs" if self.kind == "colocation" else "one job"
            raise InputError(f"a {self.kind} run has {count} jobs", expected=expected, got=str(count))
        for workload in self.workloads:
            if is_graph_only(workload.model):
                raise NotMeasurableError(
                    f"{workload.model} cannot be measured, because a graph has no code to run",
                    expected="a model of `cotenant zoo list`, or module:factory",
                    got=workload.model,
                )
            if ":" not in workload.model:  # a factory may write its own step
                check_measurable(workload)
        if self.cached_activations and not (self.kind == "freezing" and self.workloads[0].frozen_prefix):
            raise InputError(
                "cached activations require a frozen prefix",
                expected="one job with frozen_prefix of 1 or more",
                got=" + ".join(map(str, self.workloads)),
            )
        if self.processes < 1 or (self.kind != "ddp" and self.processes > 1):
            raise InputError("processes is out of range", expected="1, or more for ddp", got=self.processes)

    def run_id(self, settings: MeasureSettings) -> str:
        """Twelve hexadecimal digits: a hash of the request and the settings that affect results."""
        body = json.dumps(self.to_mapping() | settings.deciding(), sort_keys=True)
        return hashlib.sha256(body.encode()).hexdigest()[:12]

    def to_mapping(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "kind": self.kind,
            "workloads": [str(w) for w in self.workloads],
            "device": self.device,
            "sharing": self.sharing,
        }
        if self.cached_activations:
            plain["cached_activations"] = True
        if self.kind == "ddp":
            plain |= {"processes": self.processes, "rewrapped": self.rewrapped}
        return plain

    @classmethod
    def from_mapping(cls, values: Any) -> RunRequest:
        """Parse the output of `to_mapping`. Raises `InputError` for anything else."""
        if not isinstance(values, dict) or not isinstance(values.get("workloads"), list):
            raise InputError("not a run", expected="an object with kind and workloads", got=repr(values)[:80])
        known = {"kind", "device", "sharing", "cached_activations", "processes", "rewrapped"}
        try:
            workloads = tuple(Workload.parse(spec) for spec in values["workloads"])
            return cls(workloads=workloads, **{k: v for k, v in values.items() if k in known})
        except (TypeError, AttributeError) as error:
            raise InputError(
                "not a run", expected="kind, workloads, device, sharing", got=str(error)
            ) from None

    def __str__(self) -> str:
        jobs = " + ".join(str(w) for w in self.workloads)
        return f"{self.kind} {jobs}{' (cached activations)' if self.cached_activations else ''}"


def check_measurable(workload: Workload) -> None:
    """Check that a job has no option that its measured step would not follow.

    Raises:
        NotMeasurableError: it has one, and its figures would be recorded as those of another job.
    """
    for name in _NOT_MEASURED:
        value, measured = getattr(workload, name), getattr(Workload(workload.model), name)
        if value != measured:
            raise NotMeasurableError(
                f"{workload.model} cannot be measured with this {name}",
                expected=str(measured),
                got=value,
                hint="measure a module:factory that takes (workload, device) and returns an object with step(), model and "
                "samples_per_step",
            )
    if workload.precision in PREDICTED_PRECISIONS:
        raise NotMeasurableError(
            f"jobs in {workload.precision} can be predicted, but not run",
            expected="another precision",
            got=str(workload),
            hint="torch trains in it only through other libraries; run the job with precision=amp",
        )
