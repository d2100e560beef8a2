"""The tidy tables: their columns, units and valid values.

One definition serves four purposes: the pandera schema for every read and write, the errors of
`cotenant data validate`, the template of `cotenant data template` and the tables in docs/data.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from datasets.fields import (
    ARCHITECTURE,
    BATCH_SIZE,
    DEVICE,
    DISTURBED,
    DTYPES,
    FRAMEWORK_VERSION,
    GPUS,
    JOB,
    JOB_OPTIONS,
    MEMORY,
    NODES,
    PROCESSES,
    PROVENANCE,
    SM_SHARE,
    STEP,
    SYNC,
    WORKLOAD,
    Field,
    amount,
    count,
    optional,
    ratio,
    text,
)
from profiling.errors import UnknownNameError
from profiling.workload import PRECISIONS, SHARING_MODES

if TYPE_CHECKING:
    import pandera.pandas as pandera

_SET_ID = text("set_id", "identifies a co-location set in its folder of tables", "mine-2026-01/v100/0001")
_MEMBER = Field("member", "integer", "position in the set, from 0; the order is not significant", 0, least=0)
_SHARING = text("sharing", "how the device is shared", "time-slice", choices=SHARING_MODES)
_SHARE_OPTIONS = tuple(field for field in JOB_OPTIONS if field is not SM_SHARE)


TABLES: dict[str, tuple[Field, ...]] = {
    "workloads": (
        *JOB,
        *JOB_OPTIONS,
        count("parameter_count", "number of parameters, if stated by the source", 11173962),
        amount("macs_per_sample", "multiply-adds of a forward pass, as counted by the source", 5.6e8),
        amount(
            "activations_per_sample", "output elements of a forward pass, as counted by the source", 7.4e5
        ),
        amount("pooled_activations_per_sample", "output elements of pooling among these", 512.0),
        count("layer_count", "number of layers, as counted by the source", 18),
        text("dataset", "training data, as named by the source", "CIFAR-10", required=False),
        *PROVENANCE,
    ),
    "solo": (
        DEVICE,
        *JOB,
        *JOB_OPTIONS,
        Field("step_time_s", "number", "seconds per step, alone", 0.031, required=False, above=0),
        Field("samples_per_s", "number", "samples per second, alone", 2064.5, required=False, above=0),
        MEMORY,
        ratio("utilization_ratio", "share of time in which a kernel ran", 0.81),
        ratio("memory_bandwidth_ratio", "share of time in which device memory was busy", 0.47),
        amount("power_w", "mean electrical power of the device", 187.5),
        GPUS,
        count("repeat", "number of the run, if a configuration ran several times", None, least=1),
        FRAMEWORK_VERSION,
        DISTURBED,
        *PROVENANCE,
    ),
    "colocation": (
        _SET_ID,
        _MEMBER,
        DEVICE,
        _SHARING,
        PROCESSES,
        *JOB,
        *JOB_OPTIONS,
        Field("throughput_ratio", "number", "co-located / solo throughput of this member", 0.83, above=0),
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
        ratio("set_utilization_ratio", "share of time in which a kernel of any member ran", 0.97),
        ratio("set_memory_bandwidth_ratio", "share of time in which device memory was busy", 0.62),
        Field(
            "censored",
            "flag",
            "the ratio is a lower bound (capped by its publisher), not a point",
            False,
        ),
        Field("is_target", "flag", "whether this member's ratio was measured at all", True),
        DISTURBED,
        *PROVENANCE,
    ),
    "mixes": (
        _SET_ID,
        _MEMBER,
        DEVICE,
        _SHARING,
        PROCESSES,
        *JOB,
        *_SHARE_OPTIONS,
        Field(
            "numerator_sm_share_ratio",
            "number",
            "share of the SMs available to every process, for the numerator",
            1.0,
            above=0,
            most=1,
        ),
        Field(
            "denominator_sm_share_ratio",
            "number",
            "share of the SMs available to every process, for the denominator",
            0.14,
            above=0,
            most=1,
        ),
        Field(
            "log_step_time_ratio",
            "number",
            "natural logarithm of this member's step time at the first share over that at the second",
            -0.45,
        ),
        *PROVENANCE,
    ),
    "memory": (
        DEVICE,
        *JOB,
        *JOB_OPTIONS,
        MEMORY,
        amount("lower_bound_bytes", "the job did not run in this much memory", 1.7e9, above=0, least=None),
        amount("upper_bound_bytes", "the job ran in this much memory", 2.6e9, above=0, least=None),
        text(
            "scope",
            "what was measured: memory of the process on the `device`, context included; the `allocator`'s "
            "peak; or the `pool` that a framework reserved in advance",
            "device",
            choices=("device", "allocator", "pool"),
        ),
        amount("estimate_bytes", "the source's own estimate", 1.9e9),
        *PROVENANCE,
    ),
    "operators": (
        DEVICE,
        text("kind", "canonical operator kind", "matmul"),
        text("operator", "the framework's name for the operator", "bmm"),
        count("operand_count", "number of tensors that it reads", 2),
        count("b", "batch of matrices or images; rows of an elementwise or normalising operator", 16),
        count("m", "rows of the result", 512),
        count("n", "columns of the result; elements of a row", 64),
        count("k", "length of the contraction", 512),
        count("input_channels", "input channels of a convolution", None),
        count("output_channels", "output channels of a convolution", None),
        count("kernel_size", "kernel size of a square convolution", None),
        count("input_size", "pixels along the input's side", None),
        count("stride", "stride of a convolution", None),
        count("padding", "padding of a convolution", None),
        text("precision", "arithmetic", "fp32", choices=PRECISIONS),
        Field("latency_s", "number", "seconds of one forward call, launch included", 1.2e-4, above=0),
        text("kernel", "name of the longest kernel", "volta_sgemm_64x64_nn", required=False),
        amount("warps_per_sm", "requested resident warps per SM", 0.65),
        amount("blocks_per_sm", "blocks in the grid per SM", 0.325),
        count("grid_blocks", "blocks in the grid", 13),
        count("block_threads", "threads per block", 64),
        FRAMEWORK_VERSION,
        *PROVENANCE,
    ),
    "kernels": (
        DEVICE,
        *JOB,
        *JOB_OPTIONS,
        Field("position", "integer", "order of launch within a step, from 0", 0, least=0),
        text("kernel", "the kernel's name", "cudnn::bn_fw_tr_1C11_kernel_NCHW"),
        Field("duration_s", "number", "seconds on the device", 1.07e-4, above=0),
        count("sm_count", "SMs required by its blocks; may exceed the device's", 80),
        text(
            "bound",
            "what limits it, according to the source",
            "compute",
            choices=("compute", "memory", "unknown"),
        ),
        *PROVENANCE,
    ),
    "freezing": (
        DEVICE,
        *JOB,
        Field(
            "frozen_prefix", "integer", "number of leading atomic layers that are not trained", 20, least=0
        ),
        Field("total_layers", "integer", "atomic layers of the model", 41, least=1),
        GPUS,
        NODES,
        optional(STEP),
        SYNC,
        MEMORY,
        text(
            "note",
            "known problem of the row: `warm-up`, `cudnn-workspace`, `noisy`",
            "",
            required=False,
        ),
        DISTURBED,
        *PROVENANCE,
    ),
    "scaling": (
        DEVICE,
        *JOB,
        replace(GPUS, example=8),
        replace(NODES, example=2),
        text("placement", "`consolidated`, `unconsolidated`, or the GPUs on each node, such as `4-4`", "4-4"),
        STEP,
        replace(SYNC, example=0.004),
        *PROVENANCE,
    ),
    "graphs": (
        ARCHITECTURE,
        DEVICE,
        BATCH_SIZE,
        optional(WORKLOAD),
        text("node", "name of the layer in its graph", "node5"),
        text("operator", "the layer as printed by its framework", "Conv2d(3, 64, ...)"),
        text("inputs", "nodes whose output it reads, separated by spaces", "node4", required=False),
        count("occurrences", "how often the whole model runs it; empty: once", 24, least=1),
        Field("forward_time_s", "number", "seconds of the forward pass", 0.0036, least=0),
        Field("backward_time_s", "number", "seconds of the backward pass", 0.0049, least=0),
        Field("activation_bytes", "number", "bytes of its output", 2.05e8, least=0),
        amount("parameter_bytes", "bytes of its parameters", 37632.0),
        *PROVENANCE,
    ),
}

# Key columns: no two rows of a table may agree in all of them.
KEYS: dict[str, tuple[str, ...]] = {
    "workloads": ("workload", "campaign"),
    "solo": ("device", "workload", "gpus", "campaign", "repeat"),
    "colocation": ("set_id", "member"),
    "mixes": ("set_id", "member", "numerator_sm_share_ratio", "denominator_sm_share_ratio"),
    "memory": ("device", "workload", "campaign", "scope"),
    "operators": (),  # one shape may have been timed several times
    "kernels": ("device", "workload", "campaign", "position"),
    "freezing": (),  # repeats of one configuration are rows of their own
    "scaling": (),
    "graphs": ("architecture", "device", "batch_size", "workload", "node", "campaign"),
}

# Tables of sets, and the columns shared by all members of a set.
SET_COLUMNS: dict[str, tuple[str, ...]] = {
    "colocation": (
        "device",
        "sharing",
        "processes",
        "set_memory_bytes",
        "set_utilization_ratio",
        "set_memory_bandwidth_ratio",
        "disturbed",
        "source",
        "campaign",
        "licence",
        "origin",
    ),
    "mixes": ("device", "sharing", "processes", "source", "campaign", "licence", "origin"),
}

# A row must fill at least one of these columns.
ONE_OF: dict[str, tuple[str, ...]] = {"memory": ("memory_bytes", "lower_bound_bytes", "upper_bound_bytes")}


def table_fields(table: str) -> tuple[Field, ...]:
    """The columns of `table`.

    Raises:
        UnknownNameError: no such table.
    """
    if table not in TABLES:
        raise UnknownNameError("unknown table", expected="one of " + ", ".join(TABLES), got=table)
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
        # `datasets.tables` has already typed texts; pandera would check each cell, which doubles the time.
        dtype = None if field.kind == "text" else DTYPES[field.kind]
        columns[field.name] = pandera.Column(dtype, checks=checks, nullable=not field.required)
    return pandera.DataFrameSchema(columns, strict=True, ordered=True, name=table)
