"""Pipeline planning: partitions of PipeDream's profiles, and the time of the search.

    python -m benchmarks.pipeline [--profiles DIR] [--parts layers dag models]

DIR has `NAME.graph.txt` files from a clone of msr-fiddle/pipedream; without it only synthetic graphs are
timed.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record_part
from profiling.capture.pipedream_profile import PipeDreamProfile, ProfileNode, read_profile
from profiling.errors import InfeasibleError, InputError
from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster
from scheduling.pipeline.partition import partition
from scheduling.pipeline.plan import plan
from scheduling.pipeline.schedules import SCHEDULES
from scheduling.pipeline.states import antichain_states

CLUSTERS = {
    "4": PipelineCluster((4,), (1e9,)),
    "8": PipelineCluster((8,), (1e9,)),
    "16": PipelineCluster((16,), (1e9,)),
    "4 x 4": PipelineCluster((4, 4), (12e9, 1.25e9)),
}
DEEP_CLUSTERS = {
    "64": PipelineCluster((64,), (1e9,)),
    "8 x 8": PipelineCluster((8, 8), (12e9, 1.25e9)),
}
PARTS = ("layers", "dag", "models")
OPTIONS = PartitionOptions(activation_compression_ratio=1.0)


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--profiles", type=Path, help="folder of PipeDream's graph.txt files")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="only these; the others keep their figures"
    )
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    if "layers" in arguments.parts:
        figures["layers_5000"] = _layers(5000)
        record_part("pipeline", figures)
    if "dag" in arguments.parts:
        figures["dag_of_1500_states"] = _dag()
        record_part("pipeline", figures)
    if "models" in arguments.parts and arguments.profiles:
        profiles = [read_profile(path) for path in sorted(arguments.profiles.glob("*.txt"))]
        if not profiles:
            raise InputError("no profiles", expected="NAME.graph.txt files", got=str(arguments.profiles))
        figures["models"] = {profile.name: _model(profile) for profile in profiles}
        record_part("pipeline", figures)


def _model(profile: PipeDreamProfile) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for compat in (True, False):
        start = time.perf_counter()
        space = antichain_states(profile, as_published=compat)
        states_s = time.perf_counter() - start
        mode = "compat" if compat else "default"
        rows[mode] = {"states": space.count, "search": space.search, "states_s": round(states_s, 3)}
        for name, cluster in CLUSTERS.items():
            start = time.perf_counter()
            try:
                plan = partition(space, cluster, OPTIONS, compat=compat)
            except InfeasibleError as error:
                rows[mode][name] = {"infeasible": error.message}
                continue
            rows[mode][name] = {
                "bottleneck_s": plan.bottleneck_s,
                "data_parallel_s": plan.data_parallel_s,
                "speedup": plan.speedup,
                "replicas": "-".join(str(stage.replicas) for stage in plan.stages),
                "solve_s": round(time.perf_counter() - start, 3),
            }
            row = rows[mode][name]
            print(
                f"{profile.name:16} {mode:8} {name:6} {row['bottleneck_s']:.6f} {row['speedup']:7.3f}"
                f"  {row['replicas']}  ({row['solve_s']} s)",
                flush=True,
            )
    return rows


def _layers(count: int) -> dict[str, Any]:
    """A chain of layers, and one with a skip connection around every four; random costs. CPU seconds and peak
    memory."""
    draw = np.random.default_rng(0)
    nodes = tuple(
        ProfileNode(
            f"n{i}",
            "Conv",
            draw.uniform(1e-4, 3e-3),
            draw.uniform(1e-4, 6e-3),
            draw.uniform(1e5, 5e6),
            draw.uniform(0, 6e6),
        )
        for i in range(count)
    )
    chain = [(f"n{i}", f"n{i + 1}") for i in range(count - 1)]
    skips = [(f"n{i}", f"n{i + 4}") for i in range(0, count - 4, 4)]
    result: dict[str, Any] = {}
    for kind, edges in (("chain", chain), ("residual", chain + skips)):
        start = time.process_time()
        space = antichain_states(PipeDreamProfile(kind, nodes, tuple(edges)))
        rows: dict[str, Any] = {"states": space.count, "search": space.search}
        rows["states_s"] = round(time.process_time() - start, 2)
        for name, cluster in (CLUSTERS | DEEP_CLUSTERS).items():
            start = time.process_time()
            bottleneck_s = partition(space, cluster, OPTIONS).bottleneck_s
            rows[name] = {"bottleneck_s": bottleneck_s, "solve_s": round(time.process_time() - start, 2)}
        for schedule in SCHEDULES:
            start = time.process_time()
            step_time_s = plan(space, CLUSTERS["4 x 4"], schedule, 16).step_time_s
            rows[schedule] = {"step_time_s": step_time_s, "solve_s": round(time.process_time() - start, 2)}
        rows["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(kind, rows, flush=True)
        result[kind] = rows
    return result


def _dag() -> dict[str, Any]:
    """Residual blocks with a side branch: about 1,500 states."""
    nodes: list[ProfileNode] = []
    edges: list[tuple[str, str]] = []

    def add(*before: str) -> str:
        name = f"n{len(nodes)}"
        nodes.append(
            ProfileNode(
                name,
                "Conv",
                1e-3 * (1 + len(nodes) % 7),
                2e-3 * (1 + len(nodes) % 5),
                1e6,
                1e5 * (len(nodes) % 11),
            )
        )
        edges.extend((b, name) for b in before)
        return name

    last = add()
    while len(nodes) < 895:
        left, right = add(last), last
        for _ in range(3):
            left = add(left)
        right = add(right)
        last = add(left, right)
    start = time.perf_counter()
    space = antichain_states(PipeDreamProfile("residual", tuple(nodes), tuple(edges)))
    result: dict[str, Any] = {"states": space.count, "states_s": round(time.perf_counter() - start, 2)}
    for name in ("16", "4 x 4"):
        for compat in (True, False):
            start = time.perf_counter()
            partition(space, CLUSTERS[name], OPTIONS, compat=compat)
            result[f"{name} {'compat' if compat else 'default'}, s"] = round(time.perf_counter() - start, 2)
    print(result, flush=True)
    return result


if __name__ == "__main__":
    run_benchmark(__file__, main)
