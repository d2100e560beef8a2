"""Shows captured models under the caller's SPEC; internally they are identified by their graph's hash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiling.workload import Workload


def as_given(
    specs: Sequence[str], workloads: Sequence[Workload], told: Sequence[Workload] = ()
) -> Callable[[Any], Any]:
    """A function that replaces hashes in a text or JSON value with the SPECs and their names.

    Args:
        specs: as the caller wrote them.
        workloads: the result of `local_workload` for each.
        told: the same with what was observed of them, in whose place the workloads are shown.
    """
    from profiling.workload import Workload

    own = [(s, w) for s, w in zip(specs, workloads, strict=True) if w.model.startswith("graph:")]
    names = {str(t): str(w) for t, w in zip(told, workloads, strict=bool(told)) if t != w}
    names |= {str(w): spec for spec, w in own} | {w.model: Workload.parse(spec).model for spec, w in own}

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            for inside, given in names.items():
                value = value.replace(inside, given)
            return value
        if isinstance(value, dict):
            return {key: renamed(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(renamed(item) for item in value)
        return value

    return renamed
