"""A process that reads one ONNX file under limits: JSON request on stdin, JSON answer on stdout."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from profiling.capture.onnx_limits import OnnxLimits
from profiling.errors import CotenantError, LimitError


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Read the requested file. Returns the graph and warnings, or the error."""
    limits = OnnxLimits(**request["limits"])
    try:
        _limit(limits)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            graph = _graph(request, limits)
        notes = [str(w.message) for w in caught if w.category is UserWarning]
        return {"graph": graph, "notes": notes}
    except MemoryError:
        error: CotenantError = LimitError(
            "reading the ONNX file takes too much memory", expected=f"at most {limits.memory_bytes} bytes"
        )
    except CotenantError as caught_error:
        error = caught_error
    return {
        "error": type(error).__name__,
        "detail": error.detail,
        "expected": error.expected,
        "got": None if error.got is None else str(error.got),
        "hint": error.hint,
    }


def _graph(request: dict[str, Any], limits: OnnxLimits) -> dict[str, Any]:
    from profiling.capture.onnx_reader import read_operators
    from profiling.capture.static import assemble
    from profiling.workload import Workload

    data = Path(request["path"]).read_bytes()
    operators, size, input_bytes = read_operators(
        data, request["batch_size"], request["sequence_length"], limits
    )
    return assemble(
        request["name"],
        operators,
        batch_size=size,
        input_bytes=input_bytes,
        workload=Workload.from_mapping(request["workload"]),
        source="onnx",
    ).to_dict()


def _limit(limits: OnnxLimits) -> None:
    """Have the operating system enforce the limits; where it cannot, only the caller's timeout applies."""
    try:
        import resource
    except ImportError:
        return
    seconds = int(limits.seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
