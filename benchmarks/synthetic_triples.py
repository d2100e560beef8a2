"""Sets of two and three on synthetic clusters, before and after some were observed.

    python -m benchmarks.synthetic_triples [--seeds 6]

Ten zoo models on an A100, time-sliced or under MPS by turns. Of each pair, the excess of the slowdown is the predicted one
times a factor of each job and of the pair (log-normal, 0.4, 0.4 and 0.25); in triples, the excesses of a job's two
pairs add up, and a quarter is added. After 0, 10, 40 and 80 random sets were observed, one to five times with 1 % noise:
mean absolute error of a step time and coverage of its 90 % interval, of observed and of other pairs and triples. No
public data have triples with all of their pairs on a GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations, permutations
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record

if TYPE_CHECKING:
    from predictor.predictor import Predictor

MODELS = (
    "resnet18-cifar", "resnet50-cifar", "vgg19-cifar", "lstm-wikitext2", "bert-base-squad", "vit-base-224",
    "densenet121-imagenet", "gpt-125m", "neumf-ml1m", "mobilenetv2-cifar",
)  # fmt: skip
DEVICE = "a100-40gb"
COUNTS = (0, 10, 40, 80)
_OF_JOB, _OF_PAIR, _MORE_IN_TRIPLES, _NOISE, _MOST_TIMES = 0.4, 0.25, 1.25, 0.01, 5
_Places = tuple[int, ...]
_Errors = dict[str, list[tuple[float, bool]]]


def cluster(predictor: Predictor, seed: int) -> Mapping[int, _Errors]:
    """(error, whether the interval covers) of members, by number of observed sets and by kind of set."""
    from predictor.examples.observations import Observation
    from predictor.learning.posterior import Posterior
    from profiling.workload import ColocationSet, SoloProfile, Workload

    rng, sharing = np.random.default_rng(seed), "mps" if seed % 2 else "time-slice"
    alone = [ColocationSet(DEVICE, (Workload(model),)) for model in MODELS]
    solo_s = predictor.predict_arrays(alone).solo_step_time_s[:, 0]
    jobs = [
        Workload(model, solo=SoloProfile(step_time_s=float(step)))
        for model, step in zip(MODELS, solo_s, strict=True)
    ]
    places: list[_Places] = [some for size in (2, 3) for some in combinations(range(len(jobs)), size)]
    sets = [ColocationSet(DEVICE, tuple(jobs[i] for i in some), sharing) for some in places]
    predicted = predictor.predict_arrays(sets).slowdown
    suffered, done = rng.lognormal(0, _OF_JOB, (2, len(jobs)))
    factor = np.outer(suffered, done) * rng.lognormal(0, _OF_PAIR, (len(jobs), len(jobs)))
    excess = {
        (i, j): factor[i, j] * float(slowdown[some.index(i)] - 1)
        for some, slowdown in zip(places, predicted, strict=True)
        if len(some) == 2
        for i, j in permutations(some)
    }
    true_s = [
        [
            float(solo_s[i])
            * (1 + (_MORE_IN_TRIPLES if len(some) > 2 else 1.0) * sum(excess[i, j] for j in some if j != i))
            for i in some
        ]
        for some in places
    ]
    order, result = rng.permutation(len(sets)).tolist(), {}
    for count in COUNTS:
        posterior = Posterior(predictor)
        posterior.observe(
            Observation(sets[k], member, step * float(rng.lognormal(0, _NOISE)))
            for k in order[:count]
            for member, step in enumerate(true_s[k])
            for _ in range(int(rng.integers(1, _MOST_TIMES + 1)))
        )
        errors: _Errors = defaultdict(list)
        for k, prediction in enumerate(posterior.predict_many(sets)):
            kind = f"{'observed' if k in order[:count] else 'other'} {'pairs' if len(places[k]) == 2 else 'triples'}"
            for member, step in zip(prediction.members, true_s[k], strict=True):
                answer = member.step_time_s
                errors[kind].append((abs(answer.value / step - 1), answer.lower <= step <= answer.upper))
        result[count] = errors
    return result


def main() -> None:
    """Run and record."""
    from predictor import load_predictor

    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--seeds", type=int, default=6, help="clusters (default: %(default)s)")
    options = parser.parse_args()
    predictor = load_predictor()
    together: dict[int, _Errors] = {count: defaultdict(list) for count in COUNTS}
    for seed in range(options.seeds):
        for count, errors in cluster(predictor, seed).items():
            for kind, members in errors.items():
                together[count][kind] += members
    figures = {
        str(count): {
            kind: {
                "error_percent": round(100 * float(np.mean([error for error, _ in members])), 1),
                "coverage_ratio": round(float(np.mean([covers for _, covers in members])), 3),
            }
            for kind, members in sorted(errors.items())
        }
        for count, errors in together.items()
    }
    for number, kinds in figures.items():
        print(number, kinds)
    record("synthetic_triples", {"model": predictor.version, "seeds": options.seeds, "after": figures})


if __name__ == "__main__":
    run_benchmark(__file__, main)
