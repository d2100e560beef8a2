"""Columns of tidy tables: name with unit, type, bounds and meaning; and columns shared by several tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from profiling.workload import COMPILERS, FRAMEWORKS, MEMORY_LAYOUTS, MODES, PRECISIONS

Kind = Literal["text", "integer", "number", "flag"]
# Type of a column in memory, by its kind.
DTYPES: dict[Kind, Any] = {"text": "str", "integer": "Int64", "number": "float64", "flag": "bool"}


@dataclass(frozen=True, slots=True)
class Field:
    """One column.

    Attributes:
        name: column name, with its unit.
        kind: `text`, `integer`, `number` or `flag`.
        meaning: one-line description.
        example: a value for the template.
        required: False if the cell may be empty (the whole column may then be missing in a CSV).
        least, most: inclusive bounds.
        above: exclusive lower bound.
        choices: the only valid texts.
        derived: filled in from other columns if missing or empty; if given, it must agree with them.
    """

    name: str
    kind: Kind
    meaning: str
    example: Any
    required: bool = True
    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    derived: bool = False

    @property
    def expected(self) -> str:
        """The valid values of a cell, in words."""
        if self.choices:
            text = "one of " + ", ".join(self.choices)
        elif self.kind == "text":
            text = "text"
        elif self.kind == "flag":
            text = "true or false"
        else:
            text = "an integer" if self.kind == "integer" else "a number"
            if self.above is not None:
                text += f" above {self.above:g}"
            if self.least is not None:
                text += f" from {self.least:g}"
            if self.most is not None:
                text += f" to {self.most:g}"
        return text if self.required and not self.derived else f"{text}, or empty"


def text(name: str, meaning: str, example: str, **options: Any) -> Field:
    return Field(name, "text", meaning, example, **options)


def ratio(name: str, meaning: str, example: float) -> Field:
    return Field(name, "number", meaning, example, required=False, least=0, most=1)


def optional(field: Field) -> Field:
    """The same column with optional cells."""
    return replace(field, required=False)


PROVENANCE = (
    text("source", "who published or measured it", "mine"),
    text(
        "campaign", "one measuring campaign: rows of different campaigns are not comparable", "mine-2026-01"
    ),
    text("licence", "licence of the rows (SPDX identifier if there is one)", "CC-BY-4.0"),
    text("origin", "origin of the row", "measured", choices=("measured", "modelled")),
)
WORKLOAD = text("workload", "job SPEC", "resnet18-cifar:batch_size=64")
ARCHITECTURE = text(
    "architecture",
    "the unit that by-model splits hold out: the SPEC's model, or a name of your own",
    "resnet18-cifar",
    derived=True,
)
BATCH_SIZE = Field(
    "batch_size", "integer", "samples per step and GPU", 64, required=False, least=1, derived=True
)
JOB = (WORKLOAD, ARCHITECTURE, BATCH_SIZE)
SM_SHARE = Field(
    "sm_share_ratio",
    "number",
    "share of the SMs that the process may use (MPS)",
    1.0,
    above=0,
    most=1,
    derived=True,
)
# Options of the job that determine its step; all are in the SPEC, and are columns to filter and group by.
JOB_OPTIONS = (
    text("mode", "training or inference", "training", choices=MODES, derived=True),
    text("framework", "framework that runs the step", "torch", choices=FRAMEWORKS, derived=True),
    text("compiler", "eager, or compiled (torch.compile, XLA)", "eager", choices=COMPILERS, derived=True),
    text("precision", "arithmetic of the step", "fp32", choices=PRECISIONS, derived=True),
    text("memory_layout", "layout of images", "contiguous", choices=MEMORY_LAYOUTS, derived=True),
    Field("data_on_device", "flag", "the batch is resident on the device", False, derived=True),
    Field(
        "image_size",
        "integer",
        "pixels along an image's side; empty: the model's default",
        None,
        required=False,
        least=1,
        derived=True,
    ),
    SM_SHARE,
)
DEVICE = text("device", "GPU type (`cotenant devices list`), or a slice of one (`a100:mig=3g`)", "v100")
PROCESSES = Field(
    "processes",
    "integer",
    "processes on the device, the set's members included; empty: the members alone",
    2,
    required=False,
    least=1,
    derived=True,
)
FRAMEWORK_VERSION = text("framework_version", "version of torch or TensorFlow", "2.4", required=False)
DISTURBED = Field(
    "disturbed",
    "flag",
    "other processes used the device meanwhile, so that training and evaluation leave the row out",
    False,
    required=False,
)
STEP = Field("step_time_s", "number", "seconds per step", 0.031, above=0)
GPUS = Field("gpus", "integer", "GPUs of the job", 1, least=1)
NODES = Field("nodes", "integer", "machines of the job", 1, required=False, least=1)
SYNC = Field(
    "sync_time_s",
    "number",
    "exposed gradient synchronisation, part of step_time_s",
    0.0,
    required=False,
    least=0,
)
MEMORY = Field(
    "memory_bytes",
    "number",
    "device memory of the process, context included",
    2.1e9,
    required=False,
    above=0,
)


def amount(name: str, meaning: str, example: float, **options: Any) -> Field:
    """A number from 0 that a source may not state."""
    return Field(name, "number", meaning, example, **{"required": False, "least": 0, **options})


def count(name: str, meaning: str, example: int | None, **options: Any) -> Field:
    """An integer from 0 that a source may not state."""
    return Field(name, "integer", meaning, example, **{"required": False, "least": 0, **options})
