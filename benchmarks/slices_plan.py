"""Time of `cotenant plan slices`: seven jobs on one A100, and 3,000 jobs on a fleet of 1,000.

    python -m benchmarks.slices_plan [--gpus 1000 --jobs 3000]

Uses the shipped predictor. `first_*` includes what it computes once per workload and device; the others are
medians of later repeats. Fleet jobs are drawn from the documented mix of zoo models at four batch sizes each.
`equal` jobs of a kind have the same number of steps left; `distinct` ones have individual lengths, so that no
two jobs are alike. The work is single-threaded: `cpu_s` is its processor time, `wall_s` also includes the
effect of other load (`load_average`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record
from predictor import load_predictor
from predictor.types import SetPredictor
from profiling.workload import ColocationSet, Workload
from scheduling.slices.fleet import plan_fleet
from scheduling.slices.options import OBJECTIVES, SliceConfig, SliceJob, devices_of
from scheduling.slices.plan import plan_slices
from scheduling.traces.mix import ZOO_MIX, Mix

DEVICE = "a100"
SEVEN = (
    "resnet18-cifar:batch_size=128",
    "resnet50-imagenet:batch_size=32",
    "mobilenetv2-cifar:batch_size=128",
    "lstm-wikitext2:batch_size=20",
    "transformer-multi30k:batch_size=64",
    "neumf-ml1m:batch_size=1024",
    "dcgan-64:batch_size=64",
)
TARGET_CARD_S, TARGET_FLEET_S = 0.05, 10.0


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result of `run`, its wall time and its processor time in seconds."""
    wall_s, cpu_s = perf_counter(), process_time()
    result = run()
    return result, perf_counter() - wall_s, process_time() - cpu_s


def one_card(predictor: SetPredictor, repeats: int) -> dict[str, Any]:
    """Seven different jobs on one card, by objective and by allowed ways of sharing."""
    jobs = [SliceJob(Workload.parse(spec)) for spec in SEVEN]
    rows = {}
    for name, config in {
        **{objective: SliceConfig(objective=objective) for objective in OBJECTIVES},
        "throughput, at most 2 a slice": SliceConfig(max_together=2, max_on_card=2),
        "throughput, one job a slice": SliceConfig(sharing=()),
    }.items():
        run = partial(plan_slices, jobs, DEVICE, predictor, config)
        plan, wall_s, cpu_s = timed(run)
        walls, cpus = zip(*(timed(run)[1:] for _ in range(repeats)), strict=True)
        rows[name] = {
            "first_wall_s": wall_s,
            "first_cpu_s": cpu_s,
            "wall_s": median(walls),
            "cpu_s": median(cpus),
            "sets": len(plan.options.columns.device),
            "chosen": f"{plan.chosen.kind} {plan.chosen.partition}".strip(),
            "cpu_within_target": median(cpus) < TARGET_CARD_S,
        }
        print(
            f"{len(jobs)} jobs, {name}: {median(walls) * 1e3:.1f} ms, {median(cpus) * 1e3:.1f} ms of processor time",
            flush=True,
        )
    return rows


def fleet(predictor: SetPredictor, gpus: int, count: int) -> dict[str, Any]:
    """Many cards at once."""
    shares = [share for _, share in ZOO_MIX]
    kinds, weights = [], []
    for spec, share in ZOO_MIX:
        workload = Workload.parse(spec)
        assert workload.batch_size is not None
        for factor in (0.25, 0.5, 1.0, 2.0):
            kinds.append(replace(workload, batch_size=max(1, int(workload.batch_size * factor))))
            weights.append(share / sum(shares) / 4)
    mix = Mix(tuple(kinds), tuple(weights), lambda _: 1.0)
    drawn = mix.draw(count, seed=0)
    # Capturing and encoding graphs happens once and is not part of planning.
    predictor.predict_arrays([ColocationSet(d, (w,)) for d in devices_of(DEVICE) for w in kinds])
    lengths = np.random.default_rng(0).integers(1_000, 1_000_000, count)
    rows = {}
    for objective in OBJECTIVES:
        for name, jobs in {
            "equal": [SliceJob(w, 10_000.0) for w in drawn],
            "distinct": [SliceJob(w, float(n)) for w, n in zip(drawn, lengths, strict=True)],
        }.items():
            plan, wall_s, cpu_s = timed(
                partial(plan_fleet, jobs, DEVICE, gpus, predictor, SliceConfig(objective=objective))
            )
            answer = plan.to_json()
            rows[f"{objective}, {name}"] = {
                "wall_s": wall_s,
                "cpu_s": cpu_s,
                "placed": answer["placed"],
                "speed_sum": answer["speed_sum"],
                "value": answer["value"],
                "bound_one_job_a_slice": answer["bound_one_job_a_slice"],
                "cards_used": sum(answer["kinds"].values()),
                "cpu_within_target": cpu_s < TARGET_FLEET_S,
            }
            print(
                f"{count} jobs on {gpus} cards, {objective}, {name}: {wall_s:.2f} s, {cpu_s:.2f} s of processor time",
                flush=True,
            )
    return rows


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--gpus", type=int, default=1000, help="A100 of the fleet (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=3000, help="jobs for the fleet (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=20, help="repeats of each plan (default: %(default)s)")
    arguments = parser.parse_args()
    predictor = load_predictor()
    record(
        "slices_plan",
        {
            "device": DEVICE,
            "load_average": os.getloadavg()[0],
            "one_card": one_card(predictor, arguments.repeats),
            "fleet": {
                "gpus": arguments.gpus,
                "jobs": arguments.jobs,
                **fleet(predictor, arguments.gpus, arguments.jobs),
            },
        },
    )


if __name__ == "__main__":
    run_benchmark(__file__, main)
