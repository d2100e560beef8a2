"""Captures zoo models and compares their parameter counts with the published ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from profiling.workload import Workload


@dataclass(frozen=True)
class CheckRow:
    """Expected and captured parameter counts of a model, FLOPs and operators of one step, and capture time."""

    name: str
    expected_parameters: int
    parameters: int
    forward_flops: float
    operators: int
    nodes: int
    layers: int
    seconds: float
    matches: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_zoo(
    names: list[str] | None = None, progress: Callable[[str], None] = lambda _: None
) -> list[CheckRow]:
    """Capture each model anew (no cache) with its default options.

    Args:
        names: zoo names; all of them by default.
        progress: called with each name before its capture.

    Raises:
        UnknownNameError: a name is not in the zoo.
    """
    from profiling.capture import capture_zoo
    from profiling.zoo import get_entry, zoo_names

    rows = []
    for name in names or zoo_names():
        entry = get_entry(name)
        progress(entry.name)
        start = time.perf_counter()
        graph = capture_zoo(Workload(model=entry.name))
        rows.append(
            CheckRow(
                name=entry.name,
                expected_parameters=entry.parameters,
                parameters=graph.parameter_count,
                forward_flops=graph.forward_flops,
                operators=sum(op.repeat for op in graph.operators),
                nodes=len(graph.operators),
                layers=len(graph.layers),
                seconds=time.perf_counter() - start,
                matches=graph.parameter_count == entry.parameters,
            )
        )
    return rows
