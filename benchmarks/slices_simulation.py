"""MISO's controllers in our simulator compared with their reference runs, and with `isacpp-slices`.

    python -m benchmarks.slices_simulation --data miso/simulator [--only default-seed1]

`--data` is a folder with `platform.json` (step seconds by model and slice, costs), `traces.json`,
`results.json` and `jct_s.json`: the published controllers of MISO (Li et al., SoCC 2022) on a virtual clock.
`error_percent` is the deviation of the mean completion time from the reference; every policy but `oracle`
decides by the trace's predicted times. A second `isacpp-slices` decides by the shipped predictor's step times
for MISO's networks before any run; it knows on which slices a job fits. Both may share slices, on which the
memory that the shipped predictor expects of each job must fit together; MISO's controllers do not count memory.
`isacpp-slices, one job per slice` is for comparison.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.left_out import add_cost_model, with_cost_model
from benchmarks.record import record
from predictor.types import SetPredictor
from profiling.errors import UnknownNameError
from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.slice_table import SliceTable
from scheduling.beliefs.table import Solo
from scheduling.core.job import TraceJob
from scheduling.slices.costs import SliceCosts
from scheduling.slices.policies import get_slice_policy
from scheduling.slices.simulate import SliceResult, simulate_slices

# Networks of the traces, named as by the importer of MISO's measurements, with the options that all have in
# common.
NETWORKS = {
    "embedding": "keras-embedding-newsgroups",
    "gnn": "keras-mpnn-bbbp",
    "mobilenet": "keras-mobilenetv2-cifar",
    "resnet": "keras-resnet50-cifar",
    "transformer": "keras-transformer-forda",
}
KERAS = "precision=tf32,framework=tensorflow"
RMSPROP = ("embedding",)

# Name in the reference results, policy, options.
REFERENCED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("full", "full", {}),
    ("mps", "mps", {}),
    ("static_3_2_2", "static-mig", {"partition": "3g+2g+2g"}),
    ("miso", "miso", {}),
    ("oracle", "oracle", {}),
)
# The partitions that the reference tried.
PARTITIONS = (
    "4g+2g+1g",
    "4g+1g+1g+1g",
    "3g+3g",
    "3g+2g+1g",
    "3g+1g+1g+1g",
    "3g+2g+2g",
    "3g+2g+1g+1g",
    "3g+1g+1g+1g+1g",
)


class Reference:
    """The reference runs and their inputs."""

    def __init__(self, folder: Path, predictor: SetPredictor) -> None:
        platform, self.traces, self.results, self.jct_s = (
            json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("platform", "traces", "results", "jct_s")
        )
        self.step_s: dict[str, dict[str, float]] = platform["step_s"]
        emulation = platform["emulation"]
        self.costs = SliceCosts(
            emulation["reconfigure_s"],
            emulation["first_start_s"],
            checkpoint_s=emulation["checkpoint_poll_s"] + emulation["pause_after_checkpoint_s"],
            resume_of={model: float(emulation["resume_s"][model.partition("_")[0]]) for model in self.step_s},
        )
        self.mps_penalty = float(emulation["mps_penalty_per_neighbour"])
        places = [(model, name) for model, steps in self.step_s.items() for name in steps]
        arrays = predictor.predict_arrays([ColocationSet(_device(n), (_workload(m),)) for m, n in places])
        self.memory_bytes = dict(zip(places, arrays.memory_bytes[:, 0].tolist(), strict=True))
        self.answers: dict[str, dict[str, float]] = {model: {} for model in self.step_s}
        for (model, name), step in zip(places, arrays.step_time_s[:, 0].tolist(), strict=True):
            self.answers[model][name] = step

    def inputs(self, trace: str, count_memory: bool) -> tuple[list[TraceJob], SliceTable, SliceTable]:
        """Jobs, their true step times, and the predicted ones.

        Prediction errors differ by job, so each job is a separate workload.
        """
        jobs, real, predicted = [], {}, {}
        for job in self.traces[trace]["jobs"]:
            workload = Workload(job["model"], batch_size=job["id"] + 1)
            jobs.append(TraceJob(str(job["id"]), workload, float(job["iterations"]), float(job["arrival_s"])))
            for name, step in self.step_s[job["model"]].items():
                memory = self.memory_bytes[job["model"], name] if count_memory else 0.0
                real[_device(name), workload] = Solo(step, memory)
                predicted[_device(name), workload] = Solo(job["predicted"][name], memory)
        return jobs, SliceTable(real, self.mps_penalty), SliceTable(predicted, self.mps_penalty)

    def run(
        self, trace: str, policy: str, answers: dict[str, dict[str, float]] | None = None, **options: Any
    ) -> SliceResult:
        """Run one policy on one trace, with `answers` as belief if given, otherwise with the trace's
        predictions."""
        count_memory = policy == "isacpp-slices"
        jobs, real, predicted = self.inputs(trace, count_memory)
        cards = ["a100"] * self.traces[trace]["config"]["num_gpus"]
        belief = real if policy == "oracle" else predicted
        if answers is not None:
            models = {job.workload: job.workload.model for job in jobs}
            belief = SliceTable(
                {
                    (_device(name), workload): Solo(step, self.memory_bytes[model, name])
                    for workload, model in models.items()
                    for name, step in answers[model].items()
                },
                self.mps_penalty,
            )
        return simulate_slices(jobs, cards, get_slice_policy(policy, **options), real, belief, self.costs)


def _device(profile: str) -> str:
    return "a100:mig=" + profile.partition(".")[0]


def _workload(model: str) -> Workload:
    network, _, batch = model.partition("_train")
    optimizer = "rmsprop" if network in RMSPROP else "adam"
    return Workload.parse(f"{NETWORKS[network]}:batch_size={batch},{KERAS},optimizer={optimizer}")


def mean_jct_s(result: SliceResult) -> float:
    """Mean completion time from when the controller first saw the job, as in the reference."""
    return float(result.completion_s().mean())


def compare(
    reference: Reference, trace: str, answers: dict[str, dict[str, float]] | None = None
) -> dict[str, Any]:
    """All policies on one trace."""
    rows = {}
    for name, policy, options in REFERENCED:
        result = reference.run(trace, policy, **options)
        expected = reference.results[trace][name]
        rows[name] = {
            "mean_jct_s": mean_jct_s(result),
            "reference_mean_jct_s": expected["mean_jct_s"],
            "error_percent": 100 * (mean_jct_s(result) / expected["mean_jct_s"] - 1),
            "makespan_s": result.to_json()["makespan_s"],
            "reference_makespan_s": expected["makespan_s"],
        }
    static = {p: mean_jct_s(reference.run(trace, "static-mig", partition=p)) for p in PARTITIONS}
    best = min(static, key=lambda p: static[p])
    rows["static_best"] = {"mean_jct_s": static[best], "partition": best}
    runs: list[tuple[str, dict[str, dict[str, float]] | None, dict[str, Any]]] = [
        ("isacpp-slices", None, {}),
        ("isacpp-slices, one job per slice", None, {"most_per_slice": 1}),
    ]
    if answers is not None:
        runs.extend((name + ", shipped predictor", answers, options) for name, _, options in runs[:])
    for name, given, options in runs:
        start = perf_counter()
        ours = reference.run(trace, "isacpp-slices", given, **options)
        took = perf_counter() - start
        rows[name] = {
            "mean_jct_s": mean_jct_s(ours),
            "against_miso_percent": 100 * (mean_jct_s(ours) / rows["miso"]["reference_mean_jct_s"] - 1),
            "against_oracle_percent": 100 * (mean_jct_s(ours) / rows["oracle"]["reference_mean_jct_s"] - 1),
            "makespan_s": ours.to_json()["makespan_s"],
            "moves_per_job": ours.moves / len(ours.jobs),
            "mean_decision_s": ours.to_json()["mean_decision_s"],
            "run_s": took,
        }
    order = sorted((n for n, _, _ in REFERENCED), key=lambda n: rows[n]["mean_jct_s"])
    expected_order = sorted((n for n, _, _ in REFERENCED), key=lambda n: rows[n]["reference_mean_jct_s"])
    return {"policies": rows, "order": order, "order_as_in_reference": order == expected_order}


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of MISO's simulator")
    parser.add_argument("--only", help="only this trace")
    add_cost_model(parser)
    add_name(parser)
    arguments = parser.parse_args()
    stem = record_name(parser, arguments, "slices_simulation", "only", "cost_model")
    reference = Reference(arguments.data, with_cost_model(arguments.cost_model))
    if arguments.only and arguments.only not in reference.traces:
        raise UnknownNameError("no such trace", expected=", ".join(reference.traces), got=arguments.only)
    answers = reference.answers
    ratios = [
        (answers[m][n] / answers[m]["7g.40gb"]) / (step / steps["7g.40gb"]) - 1
        for m, steps in reference.step_s.items()
        for n, step in steps.items()
        if n != "7g.40gb" and "7g.40gb" in steps
    ]
    off = 100 * float(np.mean(np.abs(ratios)))
    print(f"shipped predictor: times on slices relative to 7g off by {off:.1f} % in the mean")
    figures: dict[str, Any] = {"shipped_predictor_relative_time_error_percent": off}
    for trace in reference.traces:
        if arguments.only and trace != arguments.only:
            continue
        figures[trace] = compare(reference, trace, answers)
        for name, row in figures[trace]["policies"].items():
            against = f"{row['error_percent']:+6.2f} % of the reference" if "error_percent" in row else ""
            if name.startswith("isacpp-slices"):
                against = f"{row['against_miso_percent']:+.1f} % of MISO, {row['against_oracle_percent']:+.1f} % of the oracle"
            print(f"{trace:14s} {name:51s} {row['mean_jct_s']:8.1f} s  {against}", flush=True)
        print(f"{trace:14s} order as in the reference: {figures[trace]['order_as_in_reference']}")
    record(stem, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
