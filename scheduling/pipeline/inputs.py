"""Inputs of a plan: PipeDream profiles, captured graphs, and jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profiling.errors import InputError
from scheduling.pipeline.states import StateSpace, antichain_states

if TYPE_CHECKING:
    from profiling.graph import ComputationGraph
    from profiling.workload import Workload


@dataclass(frozen=True, slots=True)
class PipelineInput:
    """A model to be planned.

    Attributes:
        model: states of a profile, or a graph.
        times: (forward, backward) seconds of each operator of a graph; None for a profile, which has its own.
        never_measured: what was never measured of these times, in words; empty if nothing.
    """

    model: StateSpace | ComputationGraph
    times: list[tuple[float, float]] | None = None
    never_measured: str = ""

    def states(self, granularity: str = "block") -> StateSpace:
        """Its states; those of a graph are cut at a `granularity` of `scheduling.pipeline.cuts`."""
        if isinstance(self.model, StateSpace):
            return self.model
        from scheduling.pipeline.computation import graph_states

        return graph_states(self.model, None, self.times, granularity)


def read_input(source: str, device: str | None = None, *, as_published: bool = False) -> PipelineInput:
    """Read a `graph.txt`, which has measured times, or a job SPEC, which is timed for a device type.

    A SPEC's `step_time_s` scales the times of its operators, so that they sum to it.

    Args:
        source: PipeDream graph.txt, or a SPEC whose NAME may be a file (`profiling.capture.local_workload`).
        device: catalogue name.
        as_published: read a profile as the public optimizer does.

    Raises:
        InputError: not such an input, it needs a device, or the SPEC has an option that a plan cannot respect.
    """
    if device is not None:
        from profiling.devices import get_device

        get_device(device)
    path = Path(source)
    if path.suffix == ".txt":
        from profiling.capture.pipedream_profile import read_profile

        return PipelineInput(antichain_states(read_profile(path), as_published=as_published))
    if device is None:
        raise InputError(
            f"{source} has no measured times",
            expected="a device type to predict times for, or a PipeDream graph.txt",
            hint="add --device NAME; `cotenant devices list` shows them",
        )
    from models.cost import default_cost_model
    from profiling.capture import graph_for, local_workload
    from profiling.devices import get_device
    from scheduling.pipeline.computation import operator_times

    job = local_workload(source)
    _check_options(job)
    graph = graph_for(job)
    times = operator_times(graph, get_device(device), job)
    never = default_cost_model().never_measured(device, job.precision)
    total_s = sum(map(sum, times))
    # A graph without operators is refused when it is cut.
    if job.solo.step_time_s is not None and total_s > 0:
        scale = job.solo.step_time_s / total_s
        times, never = [(forward * scale, backward * scale) for forward, backward in times], ""
    return PipelineInput(graph, times, never)


def _check_options(job: Workload) -> None:
    """Raise `InputError` for options that would have no effect on a plan of training steps."""
    solo = job.solo
    without = {
        "mode": job.mode != "training",
        "frozen_prefix": bool(job.frozen_prefix),
        "sm_share_ratio": job.sm_share_ratio < 1,
        "memory_bytes": solo.memory_bytes is not None,
        "utilization_ratio": solo.utilization_ratio is not None,
        "memory_bandwidth_ratio": solo.memory_bandwidth_ratio is not None,
    }
    for name, is_given in without.items():
        if is_given:
            raise InputError(
                f"{name} has no effect on a pipeline",
                expected="a SPEC of a training job without it",
                got=str(job),
                hint="leave it out",
            )
