"""Parsing of uploaded files in a child process with limits of its own: time, memory, no network use, no shared state.

Run as `python -m serving.sandbox LIMITS`: the upload on stdin, one JSON object on stdout, `{"graph": ...}` or
`{"problem": ...}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

from profiling.errors import InputError, LimitError, UnsafeFileError
from profiling.graph import ComputationGraph


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """What the child process may use, and what its graph may hold."""

    seconds: float
    memory_bytes: int
    graph_operators: int


async def parse_onnx(data: bytes, name: str, limits: ParseLimits) -> ComputationGraph:
    """The graph of an ONNX file.

    Raises:
        InputError: not an ONNX file. LimitError: it took more than the limits allow. UnsafeFileError: it crashed the
            parser.
    """
    if not data:
        raise InputError("the upload is empty", expected="an ONNX file")
    environment = {
        k: os.environ[k] for k in ("PATH", "LANG", "PYTHONPATH", "TMPDIR", "HOME") if k in os.environ
    }
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "serving.sandbox", json.dumps(asdict(limits) | {"name": name}),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )  # fmt: skip
    try:
        async with asyncio.timeout(limits.seconds * 1.5 + 10):
            output, _ = await process.communicate(data)
    except TimeoutError:
        raise LimitError(
            "the upload took too long to parse", expected=f"at most {limits.seconds:g} s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode is not None and process.returncode < 0:
        raise UnsafeFileError("the parser died on the upload", expected="an ONNX file within the limits",
                              got=f"signal {-process.returncode}")  # fmt: skip
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        raise LimitError(
            "the upload could not be parsed within the limits",
            expected=f"at most {limits.memory_bytes} bytes of memory and {limits.seconds:g} s",
        ) from None
    if "problem" in answer:
        kind = LimitError if answer["limit"] else InputError
        raise kind(**answer["problem"])
    return ComputationGraph.from_dict(answer["graph"])


def _main() -> None:
    import resource

    settings = json.loads(sys.argv[1])
    name = settings.pop("name")
    limits = ParseLimits(**settings)
    seconds = max(1, int(limits.seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    data = sys.stdin.buffer.read()
    # Whatever a library prints must not get between us and the parent.
    answer_to = os.dup(1)
    os.dup2(2, 1)
    try:
        from profiling.capture import capture_onnx

        graph = capture_onnx(data, name=name)
        if len(graph.operators) > limits.graph_operators:
            raise LimitError(
                "the graph is too large",
                expected=f"at most {limits.graph_operators} operators",
                got=len(graph.operators),
            )
        answer: dict[str, Any] = {"graph": graph.to_dict()}
    except (InputError, LimitError) as error:
        answer = {
            "problem": {k: _text(getattr(error, k)) for k in ("detail", "expected", "got", "hint")},
            "limit": isinstance(error, LimitError),
        }
    with os.fdopen(answer_to, "w") as stream:
        json.dump(answer, stream)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:1000]


if __name__ == "__main__":
    _main()
