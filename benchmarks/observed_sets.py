"""Sets of published campaigns in random order, each predicted before its step times are observed.

    python -m benchmarks.observed_sets --data TABLES [--sets 150] [--seeds 3]

As on a cluster that runs these jobs: first nothing is known but their graphs, then more and more sets were
seen. By thirds of the order: the error of a step time in the geometric mean, how many 90 % intervals of step
times cover the measured one, and their median width as a factor (upper over lower end). `alone` is the
predictor without observations on the same sets. Only campaigns that the model has not learned from.

`held_out`: the same errors in sets that are never observed, after 25, 100 and 250 others were; also campaigns
that the model has learned from (their sets, but not as graphs without solo measurements).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record

if TYPE_CHECKING:
    from models.features import Floats
    from predictor.predictor import Predictor
    from predictor.types import Prediction
    from profiling.workload import ColocationSet

CAMPAIGNS = ("lucid", "parvagpu")
LEARNED = ("gavel-2019", "gavel-2020")
COUNTS = (25, 100, 250)
# Of a campaign's sets, at most this share is observed; of the rest, at most so many are predicted.
_OBSERVED, _ASKED = 0.7, 200
WAYS = ("alone", "observed")
# Columns of what `streamed` returns.
ERROR, COVERED, WIDTH = range(3)


def streamed(
    predictor: Predictor, sets: Sequence[tuple[ColocationSet, Floats]]
) -> dict[str, list[list[list[float]]]]:
    """Predict, then observe, set by set.

    Args:
        predictor: queried without and with the observations so far.
        sets: with the measured step times of their members.

    Returns:
        by case, for each set and member: absolute log error of the step time, whether its interval
        covers the measured one, and the log width of the interval.
    """
    from predictor.examples.observations import Observation
    from predictor.learning.posterior import Posterior

    posterior = Posterior(predictor)
    ways: tuple[Predictor | Posterior, ...] = (predictor, posterior)
    result: dict[str, list[list[list[float]]]] = {way: [] for way in WAYS}
    for asked, measured in sets:
        for way, answers in zip(WAYS, ways, strict=True):
            result[way].append(compared(answers.predict_many([asked])[0], measured))
        posterior.observe(Observation(asked, i, float(seen)) for i, seen in enumerate(measured))
    return result


def compared(prediction: Prediction, measured: Floats) -> list[list[float]]:
    """[members][ERROR, COVERED, WIDTH] of a set."""
    steps = [member.step_time_s for member in prediction.members]
    return [
        [
            abs(math.log(step.value / seen)),
            float(step.lower <= seen <= step.upper),
            math.log(step.upper / step.lower),
        ]
        for step, seen in zip(steps, measured, strict=True)
    ]


def held_out(
    predictor: Predictor, sets: Sequence[tuple[ColocationSet, Floats]], seeds: int
) -> dict[str, dict[str, list[float]]]:
    """Figures of sets that are never observed, by the number of others that were."""
    from predictor.examples.observations import Observation
    from predictor.learning.posterior import Posterior

    result = {}
    for count in COUNTS:
        rows = []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(sets))
            border = int(_OBSERVED * len(sets))
            posterior = Posterior(predictor)
            posterior.observe(
                Observation(sets[k][0], i, float(seen))
                for k in order[:border][:count]
                for i, seen in enumerate(sets[k][1])
            )
            asked = [sets[k] for k in order[border:][:_ASKED]]
            predictions = posterior.predict_many([one for one, _ in asked])
            rows += [compared(p, measured) for p, (_, measured) in zip(predictions, asked, strict=True)]
        result[str(count)] = by_block([rows])
    return result


def by_block(blocks: Sequence[list[list[list[float]]]]) -> dict[str, list[float]]:
    """The reported figures of each block of sets."""
    parts = [np.array([member for one in block for member in one]) for block in blocks]
    return {
        "error_percent": [percent(float(part[:, ERROR].mean())) for part in parts],
        "coverage_ratio": [round(float(part[:, COVERED].mean()), 3) for part in parts],
        "median_width_factor": [round(math.exp(np.median(part[:, WIDTH])), 2) for part in parts],
    }


def percent(log_error: float) -> float:
    """Convert an error in the log of a step time to per cent, in the geometric mean."""
    return round(100 * (math.exp(log_error) - 1), 1)


def measured_sets(tables: Path, campaign: str) -> list[tuple[ColocationSet, Floats]]:
    """A campaign's sets whose members were all resident and measured, jobs known by graph only.

    Raises:
        InputError: the tables lack the campaign.
    """
    from datasets.sets import rows_of
    from datasets.tables import read_table
    from predictor.examples.examples import examples_of
    from profiling.workload import ColocationSet

    colocation, solo = read_table(tables, "colocation"), read_table(tables, "solo")
    examples = examples_of(rows_of(colocation, [campaign]), solo[solo.campaign == campaign])
    result = []
    for rows, resident in zip(
        np.split(np.arange(len(examples.workloads)), examples.first[1:]), examples.resident, strict=True
    ):
        jobs = [examples.workloads[i] for i in rows]
        if not resident or len(jobs) < 2 or not examples.scored[rows].all():
            continue
        if any(job.solo.step_time_s is None for job in jobs):
            continue
        steps = np.array([job.solo.step_time_s for job in jobs]) / examples.ratio[rows]
        asked = ColocationSet(
            examples.devices[rows[0]], tuple(job.without_solo() for job in jobs), examples.mode[rows[0]]
        )
        result.append((asked, steps))
    return result


def main() -> None:
    from predictor import load_predictor

    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="tables with the sets of Lucid, ParvaGPU and Gavel"
    )
    parser.add_argument("--sets", type=int, default=150, help="sets drawn from each campaign")
    parser.add_argument("--seeds", type=int, default=3, help="orders drawn")
    arguments = parser.parse_args()
    sets_of = {name: measured_sets(arguments.data, name) for name in CAMPAIGNS + LEARNED}
    predictor = load_predictor()
    figures: dict[str, Any] = {"model": predictor.version, "sets": arguments.sets, "seeds": arguments.seeds}
    for campaign in CAMPAIGNS:
        sets = sets_of[campaign]
        third = min(arguments.sets, len(sets)) // 3
        blocks: dict[str, list[list[list[list[float]]]]] = {way: [[], [], []] for way in WAYS}
        for seed in range(arguments.seeds):
            order = np.random.default_rng(seed).permutation(len(sets))[: arguments.sets]
            rows = streamed(predictor, [sets[k] for k in order])
            for way in WAYS:
                for k in range(3):
                    blocks[way][k] += rows[way][k * third : (k + 1) * third]
        figures[campaign] = {way: by_block(thirds) for way, thirds in blocks.items()}
        print(campaign, figures[campaign])
    figures["held_out"] = {}
    for campaign in CAMPAIGNS + LEARNED:
        figures["held_out"][campaign] = held_out(predictor, sets_of[campaign], arguments.seeds)
        print(campaign, figures["held_out"][campaign])
    record("observed_sets", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
