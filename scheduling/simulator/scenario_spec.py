"""A trace, a cluster, a ground truth and a belief by their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiling.errors import InputError
from scheduling.simulator.realism import Realism
from scheduling.traces.sia import KINDS

BELIEFS = ("predictor", "truth", "constant")
_MOST_LOAD = 20.0


@dataclass(frozen=True, slots=True)
class ScenarioSpec:
    """Description of a scenario, in values that fit on a command line and can be sent to another process.

    Attributes:
        trace: a CSV, `philly[:FILE]`, `sia:FILE`, or `synthetic:rate=...,jobs=...`.
        cluster: a cluster.yaml or the name of a built-in cluster.
        seed: seed of the mix, of the synthetic trace, and of the truth's deviation from the belief.
        data: folder of imported tables; its co-location table is then the ground truth, and its workloads the
            mix.
        source: use only rows from this source; if None, from the only one that covers the cluster's types.
        belief: `predictor`, `truth` (an oracle), or `constant[:RATIO]` (solo times of the truth, and one
            throughput ratio, .65, for every job that shares: the baseline for predictions of interference).
        model: the predictor: `default`, a folder, `models:/NAME@ALIAS`, or a user's `module:PREDICTOR`.
        columns: column names of the trace, if not recognised.
        limit: only the first jobs.
        kind: kind of Sia's jobs if the file does not state it.
        upstream_rounds: Gavel's policies with the artefacts of its public simulator's rounds.
        load: arrivals are scaled so that the jobs need this share of the cluster's GPU-seconds; None: as in
            the trace.
        elastic: share of jobs that get a range of GPUs (`scheduling.traces.elastic`).
        tunable: share of jobs that may tune their batch size; 0: only those that may in the trace.
        realism: parts of `scheduling.simulator.realism.PARTS`, or `all`, and of its `OPTIONS`; none: an ideal
            cluster.
        skip_infeasible: skip jobs that can never run on the cluster; otherwise they are an error.
    """

    trace: str
    cluster: str
    seed: int = 0
    data: str | None = None
    source: str | None = None
    belief: str = "predictor"
    model: str = "default"
    columns: dict[str, Any] | None = None
    limit: int | None = None
    kind: str = "adaptive"
    upstream_rounds: bool = False
    load: float | None = None
    skip_infeasible: bool = False
    elastic: float = 0.0
    tunable: float = 0.0
    realism: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        kind, _, ratio = self.belief.partition(":")
        if kind not in BELIEFS or (ratio and (kind != "constant" or not _is_ratio(ratio))):
            raise InputError(
                "unknown belief",
                expected="one of "
                + ", ".join(BELIEFS)
                + ", or constant:RATIO with a ratio above 0 and at most 1",
                got=self.belief,
            )
        if self.kind not in KINDS.values():
            raise InputError(
                "unknown kind of jobs", expected="one of " + ", ".join(KINDS.values()), got=self.kind
            )
        for name, least in (("seed", 0), ("limit", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is out of range", expected=f"an integer from {least}", got=value)
        if self.load is not None and not 0 < self.load <= _MOST_LOAD:  # more was probably meant in per cent
            raise InputError(
                "load is out of range",
                expected=f"a share of the cluster above 0, such as 0.9, at most {_MOST_LOAD:g}",
                got=self.load,
            )
        for name, share in (("elastic", self.elastic), ("tunable", self.tunable)):
            if not 0 <= share <= 1:
                raise InputError(f"{name} share is out of range", expected="0 to 1", got=share)
            if share and self.trace.startswith("sia:"):
                raise InputError(
                    "jobs of sia: have their own ranges",
                    expected=f"another trace with {name}",
                    got=self.trace,
                )
        if self.load is not None and self.trace.startswith("sia:"):
            raise InputError(
                "load needs jobs of known length", expected="another trace than sia:", got=self.trace
            )
        if self.realism:
            Realism.of(self.realism)
            if self.trace.startswith("sia:"):
                raise InputError(
                    "realism needs jobs of known length, and those of sia: decide by their own batches how long "
                    "they take",
                    expected="another trace than sia:",
                    got=self.trace,
                )
        if self.source is not None and self.data is None:
            raise InputError(
                "--source needs tables", expected="a folder of imported tables, too", got=self.source
            )
        if self.columns is not None and self.trace.startswith(("synthetic:", "sia:")):
            raise InputError("--columns needs a CSV trace", expected="a CSV as trace", got=self.trace)


def _is_ratio(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False
