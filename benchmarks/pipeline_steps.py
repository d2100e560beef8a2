"""The planner's step time against two real processes: torch's synchronous 1F1B over gloo, a core each.

    python -m benchmarks.pipeline_steps [--steps 30]

The zoo's VGG-11, cut where the planner cuts it for this CPU and at two other layers. Predicted twice: by the
planner's timeline with separately measured stage times (processor time of one process), and by its cost model
alone. The measured figure is the lower quartile of the steps, because other load only makes them longer.
Needs two cores.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.pipeline_runtime import Training, keep, launch, split_model
from benchmarks.pipeline_training import digits, model
from benchmarks.record import record
from profiling.capture import graph_for
from profiling.workload import Workload
from scheduling.pipeline.cluster import PipelineCluster
from scheduling.pipeline.plan import plan
from scheduling.pipeline.schedules import worker_orders
from scheduling.pipeline.timeline import StageTimes, simulate

BATCH = 32
SPEC = f"vgg11-cifar:batch_size={BATCH}"
CUTS = ("features.8", "features.20")
MICROBATCHES = (2, 4, 8)
WARM = 4
# Gloo between processes of one machine; the activations at these cuts take less than a millisecond.
BYTES_PER_S = 2e9


@dataclass(frozen=True)
class Case:
    """A cut of the model and a number of microbatches."""

    split: str
    microbatches: int

    def training(self, steps: int) -> Training:
        batches = digits(steps, BATCH)
        return Training(
            partial(model, SPEC), batches, [self.split], learning_rate=0.001, microbatches=self.microbatches
        )


def measured_s(case: Case, steps: int) -> list[float]:
    """Seconds of each step, from barrier to barrier."""
    return launch(_stage, case.training(steps + WARM)).losses[WARM:]


def _stage(rank: int, training: Training, folder: Path) -> None:
    """One stage on its core; durations are stored in place of losses."""
    import torch.distributed as dist
    from torch.distributed.pipelining import Schedule1F1B

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    example = training.batches[0][0].chunk(training.microbatches)[0]
    pipe = split_model(training.build(), example, training.split_points)
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = Schedule1F1B(stage, training.microbatches, loss_fn=training.loss)
    durations = []
    for inputs, target in training.batches:
        stage.submod.zero_grad()
        dist.barrier()
        began = time.perf_counter()
        schedule.step(inputs) if rank == 0 else schedule.step(target=target, losses=[])
        dist.barrier()
        durations.append(time.perf_counter() - began)
    keep(folder, rank, dict(stage.submod.named_parameters()), durations)


def stage_times(case: Case, repeats: int = 12) -> list[StageTimes]:
    """Processor time of each stage's forward and backward pass of one microbatch, in one process."""
    training = case.training(1)
    inputs, target = (part.chunk(case.microbatches)[0] for part in training.batches[0])
    pipe = split_model(training.build(), inputs, training.split_points)
    times, value, sent = [], inputs, 0.0
    for number in range(2):
        module = pipe.get_stage_module(number)
        forward, backward = [], []
        for _ in range(repeats):
            received = value.detach().requires_grad_(number > 0)
            began = time.process_time()
            output = module(received)
            if number == 1:
                output = training.loss(output, target)
            middle = time.process_time()
            output.backward(None if number == 1 else torch.ones_like(output))
            forward.append(middle - began)
            backward.append(time.process_time() - middle)
        sent = output.numel() * 4 / BYTES_PER_S
        half = float(np.median(backward)) / 2
        times.append(StageTimes(float(np.median(forward)), half, half, sent))
        value = output
    return times


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--steps", type=int, default=30, help="measured steps per cut (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    graph = graph_for(Workload.parse(SPEC))
    cluster = PipelineCluster((2,), (BYTES_PER_S,))
    rows: list[dict[str, Any]] = []
    for microbatches in MICROBATCHES:
        chosen = plan(graph, cluster, microbatches=microbatches, device="cpu", depth=2)
        for split in dict.fromkeys([*chosen.split_points, *CUTS]):
            case = Case(split, microbatches)
            times = stage_times(case)
            timeline = simulate(worker_orders("1f1b", 2, microbatches), times)
            real = np.array(measured_s(case, arguments.steps))
            step_s = float(np.percentile(real, 25))
            own = [split] == list(chosen.split_points)
            row = {
                "split": split,
                "microbatches": microbatches,
                "planners_cut": own,
                "measured_s": step_s,
                "measured_median_s": float(np.median(real)),
                "predicted_s": timeline.total_s,
                "off_percent": 100 * (timeline.total_s / step_s - 1),
                "cost_model_s": chosen.timeline.total_s if own else None,
                "stages_forward_backward_s": [
                    [t.forward_s, t.input_gradient_s + t.weight_gradient_s] for t in times
                ],
            }
            rows.append(row)
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
            off = np.array([row["off_percent"] for row in rows])
            record(
                "pipeline_steps",
                {"model": SPEC, "rows": rows, "mean_absolute_off_percent": float(np.abs(off).mean())},
            )


if __name__ == "__main__":
    run_benchmark(__file__, main)
