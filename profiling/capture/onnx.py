"""`capture_onnx`: captures a training step's graph from an ONNX file, read by a separate process under limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from profiling import errors
from profiling.capture.onnx_limits import OnnxLimits, check_size
from profiling.errors import InputError, LimitError, UnsafeFileError
from profiling.graph import ComputationGraph
from profiling.workload import Workload


def capture_onnx(
    source: Path | str | bytes,
    *,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    workload: Workload | None = None,
    name: str | None = None,
    limits: OnnxLimits = OnnxLimits(),
) -> ComputationGraph:
    """The graph of a training step of an ONNX model (opset 13 or newer).

    Only shapes are read: weights, also external ones, are ignored, and nothing in the file is executed but
    arithmetic with sizes. The file is parsed by a separate process with limits on memory and time. Float
    initialisers count as parameters, except scalars and the running statistics of batch norms; an exporter
    that folds batch norms into convolutions or shares no weights changes the count.

    Args:
        source: a path, or the file's bytes.
        batch_size: binds the first dimension of the inputs.
        sequence_length: binds every other dynamic dimension.
        workload: training options; its batch size and sequence length are the defaults.
        limits: limits on the file; `OnnxLimits()` by default.

    Raises:
        InputError: no such file, not ONNX, too old, dynamic dimensions, inconsistent shapes, nothing to compute.
        LimitError: larger than the limits, or reading takes longer or more memory than they allow.
        UnsafeFileError: cycles, deep nesting, recursive functions, external data outside the folder.
    """
    if isinstance(source, bytes):
        check_size(len(source), limits)
        with tempfile.NamedTemporaryFile(suffix=".onnx") as stream:
            stream.write(source)
            stream.flush()
            return capture_onnx(
                stream.name,
                batch_size=batch_size,
                sequence_length=sequence_length,
                workload=workload,
                name=name or "onnx",
                limits=limits,
            )
    path = Path(source)
    if not path.is_file():
        raise InputError(f"no file at {path}", expected="an ONNX file", hint="check the path")
    check_size(path.stat().st_size, limits)
    options = workload or Workload(model=str(path))
    request = {
        "path": str(path.resolve()),
        "name": name or path.stem,
        "batch_size": batch_size or options.batch_size,
        "sequence_length": sequence_length or options.sequence_length,
        "workload": options.without_solo().to_mapping(),
        "limits": asdict(limits),
    }
    graph = ComputationGraph.from_dict(_ask(request, limits))
    if not graph.operators:
        raise InputError(
            "the ONNX graph computes nothing from its inputs",
            expected="at least one operator besides constants",
        )
    return graph


def _ask(request: dict[str, Any], limits: OnnxLimits) -> dict[str, Any]:
    """Run the reader in a separate process and return the graph, or raise the reported error."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "profiling.capture.onnx_worker"],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=limits.seconds + 30,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LimitError(
            "reading the ONNX file takes too long", expected=f"at most {limits.seconds:g} s"
        ) from None
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise _crash(done.returncode, done.stderr.decode(errors="replace"), limits) from None
    for note in answer.get("notes", ()):
        warnings.warn(note, stacklevel=4)
    if "error" in answer:
        kind = getattr(errors, answer["error"], InputError)
        raise kind(answer["detail"], expected=answer["expected"], got=answer["got"], hint=answer["hint"])
    graph: dict[str, Any] = answer["graph"]
    return graph


def _crash(code: int, text: str, limits: OnnxLimits) -> errors.CotenantError:
    if code in (-9, -24, 137):
        return LimitError("reading the ONNX file takes too long", expected=f"at most {limits.seconds:g} s")
    if "MemoryError" in text or "bad_alloc" in text:
        return LimitError(
            "reading the ONNX file takes too much memory", expected=f"at most {limits.memory_bytes} bytes"
        )
    last = text.strip().splitlines()[-1] if text.strip() else f"exit code {code}"
    return UnsafeFileError("the ONNX reader crashed on this file", got=last)
