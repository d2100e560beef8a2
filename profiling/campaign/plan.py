"""`CampaignPlan`: the runs of a campaign, their order, and how they are measured."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from profiling.errors import InputError
from profiling.files import read_json, write_json
from profiling.measure.request import DEVICES, NotMeasurableError, RunRequest
from profiling.measure.settings import MeasureSettings

PLAN_FORMAT, PLAN_VERSION = "cotenant-plan", 1


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a plan.

    Attributes:
        request: what to measure.
        expected_s: expected duration, including process start and warm-up.
        reason: why it was chosen, in a few words.
    """

    request: RunRequest
    expected_s: float
    reason: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.expected_s < math.inf:
            raise InputError(
                f"expected_s of {self.request} is out of range",
                expected="seconds from 0",
                got=self.expected_s,
            )


@dataclass(frozen=True)
class CampaignPlan:
    """Runs in order of execution.

    Attributes:
        name: campaign name; a column of every resulting row.
        device: `cpu` or `cuda`.
        settings: windows and repeats of all runs.
    """

    name: str
    device: str
    runs: tuple[PlannedRun, ...]
    settings: MeasureSettings = field(default_factory=MeasureSettings)

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise InputError(
                "unknown device to measure on", expected="one of " + ", ".join(DEVICES), got=self.device
            )
        seen: set[RunRequest] = set()
        for run in self.runs:
            if run.request.device != self.device:
                raise InputError(
                    f"{run.request} is for another device than the plan's",
                    expected=self.device,
                    got=run.request.device,
                )
            if run.request in seen:
                raise InputError(
                    "a run occurs twice in the plan", expected="each run once", got=str(run.request)
                )
            seen.add(run.request)

    def run_id(self, run: PlannedRun) -> str:
        """The identifier of `run` in the slices, under this plan's settings."""
        return run.request.run_id(self.settings)

    @property
    def expected_s(self) -> float:
        return sum(run.expected_s for run in self.runs)

    def save(self, path: Path | str) -> Path:
        body = {
            "format": PLAN_FORMAT,
            "version": PLAN_VERSION,
            "name": self.name,
            "device": self.device,
            "settings": self.settings.to_mapping(),
            "runs": [
                {**r.request.to_mapping(), "expected_s": round(r.expected_s, 3), "reason": r.reason}
                for r in self.runs
            ],
        }
        return write_json(path, body)

    @classmethod
    def load(cls, path: Path | str) -> CampaignPlan:
        """Read `plan.json`. Runs that this version does not measure, and earlier ones planned, are left out with a warning.

        Raises:
            InputError: not a plan, or it has an invalid run.
        """
        body = read_json(path)
        if not isinstance(body, dict) or body.get("format") != PLAN_FORMAT:
            raise InputError(
                f"{path} is not a campaign plan",
                expected=f"an object with format {PLAN_FORMAT!r}",
                hint="make one with `cotenant campaign plan`",
            )
        if body.get("version") != PLAN_VERSION:
            raise InputError(
                "plan has an unsupported version", expected=str(PLAN_VERSION), got=body.get("version")
            )
        try:
            runs, left_out = list[PlannedRun](), list[NotMeasurableError]()
            for r in body["runs"]:
                try:
                    request = RunRequest.from_mapping(r)
                except NotMeasurableError as error:
                    left_out.append(error)
                    continue
                runs.append(PlannedRun(request, float(r["expected_s"]), str(r.get("reason", ""))))
            if left_out:
                warnings.warn(
                    f"{path}: {len(left_out)} of {len(body['runs'])} runs were left out, the first: {left_out[0]}",
                    stacklevel=2,
                )
            settings = MeasureSettings.from_mapping(body["settings"])
            return cls(str(body["name"]), str(body["device"]), tuple(runs), settings)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} is damaged", expected="name, device, settings, runs", got=repr(error)
            ) from None
