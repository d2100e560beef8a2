"""Cost of the posterior: taking in an observation, and predictions with and without correction.

Times are processor time of one thread, so other load matters little. Sets are drawn from 20 known jobs, in
the last case from 400; step times are the predicted ones times a random factor.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record

MODELS = ("resnet18-cifar", "lstm-wikitext2", "vgg11-cifar", "mobilenetv2-cifar", "transformer-multi30k")
BATCHES = (16, 32, 64, 128)
# The last case: as many observations, of jobs of these models with as many batch sizes.
MANY = 20_000, 80
DEVICES = ("v100", "p100", "t4")


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "--observations",
        type=int,
        nargs="+",
        default=[1_000, 20_000, 100_000],
        help="numbers of observations to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats", type=int, default=10, help="repeats of each measurement (default: %(default)s)"
    )
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "learning", "observations")
    from predictor import load_predictor

    predictor = load_predictor()
    figures = {str(n): measure(predictor, n, options.repeats, BATCHES) for n in options.observations}
    count, batches = MANY
    name = f"{count}, {len(MODELS) * batches} jobs"
    figures[name] = measure(predictor, count, options.repeats, range(1, 1 + batches))
    record(stem, figures)


def measure(predictor: Any, count: int, repeats: int, batches: Sequence[int]) -> dict[str, Any]:
    """Figures of a posterior with `count` observed step times of all models with all batch sizes."""
    from predictor.examples.observations import Observation
    from predictor.learning.evidence.observed import key_of
    from predictor.learning.posterior import Posterior
    from profiling.workload import ColocationSet, Workload

    chance = random.Random(7)
    jobs = [Workload.parse(f"{m}:batch_size={b}") for m in MODELS for b in batches]

    def drawn(most: int) -> ColocationSet:
        return ColocationSet(
            chance.choice(DEVICES), tuple(chance.choice(jobs) for _ in range(chance.randint(2, most)))
        )

    sets = [drawn(3) for _ in range(count + repeats)]
    steps = predictor.predict_arrays(sets).step_time_s
    told = []
    for row, colocation_set in enumerate(sets):
        member = chance.randrange(len(colocation_set.workloads))
        told.append(
            Observation(colocation_set, member, float(steps[row, member]) * math.exp(chance.gauss(0.1, 0.2)))
        )
    posterior = Posterior(predictor)
    figures: dict[str, Any] = {"all_at_once_s": _spent(lambda: posterior.observe(told[:count]))}
    figures["first_answer_s"] = _spent(lambda: posterior.predict_many(sets[:1]))
    figures["distinct_rows"] = len({key_of(observation) for observation in told[:count]})
    one_more = []
    for observation in told[count:]:
        began = time.process_time()
        posterior = posterior.extended([observation])
        one_more.append(time.process_time() - began)
    figures["one_more_ms"] = 1e3 * statistics.median(one_more)
    figures["one_more_mean_ms"] = 1e3 * statistics.fmean(one_more)
    asked = [drawn(4) for _ in range(2_000)]
    predictor.predict_many(asked[:500])
    figures["plain_ms_per_set"] = 1e3 * _spent(lambda: predictor.predict_many(asked)) / len(asked)
    figures["corrected_new_ms_per_set"] = 1e3 * _spent(lambda: posterior.predict_many(asked)) / len(asked)
    figures["corrected_again_ms_per_set"] = 1e3 * _spent(lambda: posterior.predict_many(asked)) / len(asked)
    figures["plain_arrays_us_per_set"] = 1e6 * _spent(lambda: predictor.predict_arrays(asked)) / len(asked)
    figures["corrected_arrays_us_per_set"] = 1e6 * _spent(lambda: posterior.predict_arrays(asked)) / len(asked)  # fmt: skip
    print(count, figures)
    return figures


def _spent(function: Callable[[], Any]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


if __name__ == "__main__":
    run_benchmark(__file__, main)
