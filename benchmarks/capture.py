"""Time and memory of captures: ResNet-50, a decoder of 7 billion parameters, and long chains of operators.

Also times writing, reading and hashing a graph of 100,000 operators. Each capture runs in its own process;
importing torch counts towards memory but not towards the time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record
from profiling.graph import ComputationGraph, Operator, TensorEdge

_CODE = """
import json, resource, time
import torch, torch._dynamo
from profiling.capture import capture_job, capture_module, capture_zoo, fold_repeats
from profiling.workload import Workload
import profiling.capture.step
from profiling.zoo import zoo_names
zoo_names()
start = time.perf_counter()
{body}
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
start = time.perf_counter()
digest = graph.content_hash
print(json.dumps({{
    "seconds": round(seconds, 2), "peak_memory_bytes": peak, "operators": len(graph.operators),
    "parameters": graph.parameter_count, "hash_seconds": round(time.perf_counter() - start, 2),
}}))
"""


def _chain(operators: int) -> str:
    return (
        "with torch.device('meta'):\n"
        f"    layers = [m for _ in range({operators // 2}) for m in (torch.nn.Linear(8, 8), torch.nn.ReLU())]\n"
        "graph = capture_module(torch.nn.Sequential(*layers), torch.empty(4, 8))"
    )


_CASES = {
    "resnet50-imagenet": "graph = capture_zoo(Workload('resnet50-imagenet'))",
    "gpt-7b": "graph = capture_zoo(Workload('gpt-7b'))",
    "20,000 operators": _chain(20_000),
    "100,000 operators": _chain(100_000),
}


def main() -> None:
    """Run every case and record the figures."""
    benchmark_parser(__file__, __doc__).parse_args()
    figures: dict[str, Any] = {}
    for name, body in _CASES.items():
        done = subprocess.run(
            [sys.executable, "-c", _CODE.format(body=body)], capture_output=True, text=True, check=True
        )
        figures[name] = json.loads(done.stdout.splitlines()[-1])
        figure = figures[name]
        print(
            f"{name:20s} {figure['seconds']:7.2f} s  {figure['peak_memory_bytes'] / 2**20:7.0f} MiB  "
            f"{figure['operators']:>7,} operators  {figure['parameters']:>13,} parameters"
        )
    figures["100,000 operators written, read, hashed"] = _large()
    record("capture", figures)


def _large() -> dict[str, float]:
    count = 100_000
    operators = tuple(
        Operator(f"op{i}", "elementwise", bytes_read=4.0, bytes_written=4.0) for i in range(count)
    )
    graph = ComputationGraph("large", operators, tuple(TensorEdge(i, i + 1, 4.0) for i in range(count - 1)))
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        path = graph.save(Path(folder) / "graph.json")
        seconds["write_seconds"] = round(time.perf_counter() - start, 2)
        start = time.perf_counter()
        loaded = ComputationGraph.load(path)
        seconds["read_seconds"] = round(time.perf_counter() - start, 2)
        start = time.perf_counter()
        assert loaded.content_hash == graph.content_hash
        seconds["hash_twice_seconds"] = round(time.perf_counter() - start, 2)
    print(", ".join(f"{key} {value}" for key, value in seconds.items()))
    return seconds


if __name__ == "__main__":
    run_benchmark(__file__, main)
