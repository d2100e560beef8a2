"""The tidy tables: which columns each has, in which unit, and what may stand in them.

One definition serves four ends: the pandera schema that every read and write passes, the errors of
`cotenant data validate`, the template of `cotenant data template` and the tables in docs/data.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from profiling.errors import UnknownNameError
from profiling.workload import PRECISIONS, SHARING_MODES

if TYPE_CHECKING:
    import pandera.pandas as pandera

Kind = Literal["text", "integer", "number", "flag"]


@dataclass(frozen=True, slots=True)
class Field:
    """One column.

    Attributes:
        name: column name, with its unit.
        kind: `text`, `integer`, `number` or `flag`.
        meaning: one line for people.
        example: a value as it stands in the template.
        required: False where the cell may be empty (the whole column may then be missing in a CSV).
        least, most: inclusive bounds.
        above: exclusive lower bound.
        choices: the only texts allowed.
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

    @property
    def expected(self) -> str:
        """What a cell should hold, in words."""
        if self.choices:
            text = "one of " + ", ".join(self.choices)
        elif self.kind == "text":
            text = "a text"
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
        return text if self.required else f"{text}, or empty"


def _text(name: str, meaning: str, example: str, **options: Any) -> Field:
    return Field(name, "text", meaning, example, **options)


_PROVENANCE = (
    _text("source", "who published or measured it", "mine"),
    _text(
        "campaign", "one measuring campaign: rows of different campaigns are not comparable", "mine-2026-01"
    ),
    _text("licence", "licence of the rows (SPDX identifier where there is one)", "CC-BY-4.0"),
    _text("origin", "how the row came about", "measured", choices=("measured", "modelled")),
)
_JOB = (
    _text("workload", "job SPEC", "resnet18-cifar:batch_size=64"),
    _text("architecture", "zoo name or your own: the unit that by-model splits hold out", "resnet18-cifar"),
    Field("batch_size", "integer", "samples per step and GPU", 64, required=False, least=1),
)
_PRECISION = _text("precision", "arithmetic of the step", "fp32", choices=PRECISIONS)
_DEVICE = _text("device", "GPU type (`cotenant devices list`)", "v100")
_STEP = Field("step_time_s", "number", "seconds per training step", 0.031, above=0)
_GPUS = Field("gpus", "integer", "GPUs of the job", 1, least=1)
_NODES = Field("nodes", "integer", "machines of the job", 1, required=False, least=1)
_SYNC = Field(
    "sync_time_s",
    "number",
    "exposed gradient synchronisation, part of step_time_s",
    0.0,
    required=False,
    least=0,
)
_MEMORY = Field(
    "memory_bytes",
    "number",
    "device memory of the process, context included",
    2.1e9,
    required=False,
    above=0,
)


def _ratio(name: str, meaning: str, example: float) -> Field:
    return Field(name, "number", meaning, example, required=False, least=0, most=1)


TABLES: dict[str, tuple[Field, ...]] = {
    "workloads": (
        *_JOB,
        _PRECISION,
        Field(
            "parameter_count",
            "integer",
            "parameters, where the source states them",
            11173962,
            required=False,
            least=0,
        ),
        _text("dataset", "what it was trained on, in the source's words", "CIFAR-10", required=False),
        *_PROVENANCE,
    ),
    "solo": (
        _DEVICE,
        *_JOB,
        _PRECISION,
        Field("step_time_s", "number", "seconds per training step, alone", 0.031, required=False, above=0),
        Field("samples_per_s", "number", "samples per second, alone", 2064.5, required=False, above=0),
        _MEMORY,
        _ratio("utilization_ratio", "share of time in which a kernel ran", 0.81),
        _ratio("memory_bandwidth_ratio", "share of time in which device memory was busy", 0.47),
        _GPUS,
        *_PROVENANCE,
    ),
    "colocation": (
        _text("set_id", "names one co-location set within its campaign", "mine-2026-01/v100/0001"),
        Field("member", "integer", "position in the set, from 0; carries no meaning", 0, least=0),
        _DEVICE,
        _text("sharing", "how the device is shared", "time-slice", choices=SHARING_MODES),
        *_JOB,
        _PRECISION,
        Field("throughput_ratio", "number", "co-located / solo throughput of this member", 0.83, least=0),
        Field("step_time_s", "number", "seconds per step, co-located", 0.0373, required=False, above=0),
        Field("solo_step_time_s", "number", "seconds per step, alone", 0.031, required=False, above=0),
        Field(
            "set_memory_bytes",
            "number",
            "device memory of the whole set",
            4.4e9,
            required=False,
            above=0,
        ),
        _ratio("set_utilization_ratio", "share of time in which a kernel of any member ran", 0.97),
        _ratio("set_memory_bandwidth_ratio", "share of time in which device memory was busy", 0.62),
        Field(
            "censored",
            "flag",
            "the ratio is a lower bound (capped by its publisher), not a point",
            False,
        ),
        Field("is_target", "flag", "whether this member's ratio was measured at all", True),
        *_PROVENANCE,
    ),
    "freezing": (
        _DEVICE,
        *_JOB,
        Field("frozen_prefix", "integer", "first atomic layers that are not trained", 20, least=0),
        Field("total_layers", "integer", "atomic layers of the model", 41, least=1),
        _GPUS,
        _NODES,
        Field("step_time_s", "number", "seconds per training step", 0.031, required=False, above=0),
        _SYNC,
        _MEMORY,
        _text(
            "note",
            "what is known to be wrong with the row: `warm-up`, `cudnn-workspace`, `noisy`",
            "",
            required=False,
        ),
        *_PROVENANCE,
    ),
    "scaling": (
        _DEVICE,
        *_JOB,
        _GPUS,
        _NODES,
        _text("placement", "`consolidated`, `unconsolidated`, or GPUs per node as digits", "4-4"),
        _STEP,
        _SYNC,
        *_PROVENANCE,
    ),
    "graphs": (
        _text("architecture", "zoo name or the source's own", "resnet18-imagenet"),
        _DEVICE,
        Field("batch_size", "integer", "samples per step", 64, required=False, least=1),
        _text("node", "name of the layer in its graph", "node5"),
        _text("operator", "the layer as its framework prints it", "Conv2d(3, 64, ...)"),
        _text("inputs", "nodes whose output it reads, separated by spaces", "node4", required=False),
        Field("forward_time_s", "number", "seconds of the forward pass", 0.0036, least=0),
        Field("backward_time_s", "number", "seconds of the backward pass", 0.0049, least=0),
        Field("activation_bytes", "number", "bytes of its output", 2.05e8, least=0),
        Field("parameter_bytes", "number", "bytes of its parameters", 37632.0, least=0),
        *_PROVENANCE,
    ),
}

# Columns that name a row: no two rows of a table may agree in all of them.
KEYS: dict[str, tuple[str, ...]] = {
    "workloads": ("workload", "campaign"),
    "solo": ("device", "workload", "gpus", "campaign"),
    "colocation": ("set_id", "member"),
    "freezing": (),  # repeats of one configuration are rows of their own
    "scaling": (),
    "graphs": ("architecture", "device", "batch_size", "node", "campaign"),
}

# Columns that all members of one co-location set share.
SET_COLUMNS = (
    "device",
    "sharing",
    "set_memory_bytes",
    "set_utilization_ratio",
    "set_memory_bandwidth_ratio",
    "source",
    "campaign",
    "licence",
    "origin",
)

_DTYPES: dict[Kind, Any] = {"text": str, "integer": "Int64", "number": float, "flag": bool}


def table_fields(table: str) -> tuple[Field, ...]:
    """The columns of `table`.

    Raises:
        UnknownNameError: there is no such table.
    """
    if table not in TABLES:
        raise UnknownNameError("no such table", expected="one of " + ", ".join(TABLES), got=table)
    return TABLES[table]


@cache
def pandera_schema(table: str) -> pandera.DataFrameSchema:
    """The pandera schema of `table`: types, bounds, choices, no other columns."""
    import numpy as np
    import pandera.pandas as pandera

    columns = {}
    for field in table_fields(table):
        checks = []
        if field.kind == "number":
            checks.append(pandera.Check(lambda s: np.isfinite(s), name="finite"))
        for bound, check in (
            (field.least, pandera.Check.ge),
            (field.most, pandera.Check.le),
            (field.above, pandera.Check.gt),
        ):
            if bound is not None:
                checks.append(check(bound))
        if field.choices:
            checks.append(pandera.Check.isin(field.choices))
        elif field.kind == "text" and field.required:
            checks.append(pandera.Check.str_length(min_value=1))
        columns[field.name] = pandera.Column(_DTYPES[field.kind], checks=checks, nullable=not field.required)
    return pandera.DataFrameSchema(columns, strict=True, ordered=True, name=table)
