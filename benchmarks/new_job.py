"""A new job in a cluster that has observed many others: what a few of its own sets tell.

    python -m benchmarks.new_job --data TABLES [--observe 4]

The prior knows nothing of interference: every job keeps the same share of its speed beside any other. All sets
of all other architectures were observed, and of the new one `--observe` on each device in each campaign; the
others of its own are scored. `none` are answers without its own sets. `rows` are the most used exactly; beyond
these, as many inducing rows stand for all.

`others_known` has a prior that knows the sets of the other architectures up to the scatter of measurements, as a
predictor does that was trained on them; only the new one's sets were observed. `others_known_and_observed`: all sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record
from datasets.tables import read_table
from models.features import Floats
from predictor import load_predictor
from predictor.examples.examples import Examples, examples_of
from predictor.examples.observations import Observation
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.observed import ObservedKey, key_of, name_of
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from predictor.types import PredictionArrays, SetPredictor
from profiling.workload import ColocationSet
from scheduling.beliefs.constant import ConstantPredictor

CAMPAIGNS = ("gavel-2019", "gavel-2020")
ROWS = (256, 512, 1024, 10_000)
# Standard deviation of repeated measurements, in log step time.
_SCATTER = 0.05


class AsMeasured(ConstantPredictor):
    """Answers for measured sets with their step times, measured once more; a constant for all others.

    Args:
        predictor: for solo step times and memory.
        measured: the sets.
        seed: draws the second measurements.
    """

    def __init__(self, predictor: Predictor, measured: Sequence[Observation], seed: int) -> None:
        super().__init__(predictor)
        again = np.exp(_SCATTER * np.random.default_rng(seed).normal(size=len(measured))).tolist()
        self._step_time_s: dict[ObservedKey, float] = {
            name_of(key_of(o)): o.step_time_s * factor for o, factor in zip(measured, again, strict=True)
        }

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        answer = super().predict_arrays(sets)
        slowdown = answer.slowdown.copy()
        for row, one in enumerate(sets):
            for member in range(len(one.workloads)):
                step_time_s = self._step_time_s.get(name_of(key_of(Observation(one, member, 1.0))))
                if step_time_s is not None:
                    slowdown[row, member] = max(step_time_s / answer.solo_step_time_s[row, member], 1.0)
        return replace(answer, slowdown=slowdown, step_time_s=answer.solo_step_time_s * slowdown)


def observations(examples: Examples) -> list[tuple[int, Observation]]:
    """Every scored member of every set, with its row."""
    members = np.split(np.arange(len(examples.workloads)), examples.first[1:])
    found = []
    for rows in members:
        workloads = tuple(examples.workloads[row] for row in rows)
        colocation_set = ColocationSet(examples.devices[rows[0]], workloads, examples.mode[rows[0]])
        for member, row in enumerate(rows.tolist()):
            solo_step_time_s = examples.workloads[row].solo.step_time_s
            if examples.scored[row] and solo_step_time_s:
                step_time_s = solo_step_time_s / float(examples.ratio[row])
                found.append((row, Observation(colocation_set, member, step_time_s)))
    return found


def errors(
    predictor: Predictor,
    examples: Examples,
    everyone: list[tuple[int, Observation]],
    architecture: str,
    observe: int,
    seed: int,
) -> dict[str, Floats]:
    """Relative errors of the throughput of the architecture's other sets, by number of rows.

    Args:
        predictor: reads the jobs' graphs.
        everyone: from `observations`.
    """
    featurizer = predictor.fitted_.model.featurizer
    of = np.array(examples.architectures)
    own = {examples.set_index[row] for row in np.flatnonzero(of == architecture).tolist()}
    taken: Counter[tuple[str, str]] = Counter()
    seen = set()
    for number in np.random.default_rng(seed).permutation(sorted(own)).tolist():
        first = examples.first[number]
        place = examples.devices[first], examples.campaign[first]
        taken[place] += 1
        if taken[place] <= observe:
            seen.add(number)
    others = [o for row, o in everyone if examples.set_index[row] not in own]
    few = [o for row, o in everyone if examples.set_index[row] in seen]
    asked = [
        (row, o) for row, o in everyone if of[row] == architecture and examples.set_index[row] in own - seen
    ]

    def error(told: list[Observation], rows: int, prior: SetPredictor) -> Floats:
        posterior = Posterior(prior, PosteriorConfig(most_rows=rows), featurizer=featurizer)
        posterior.observe(told)
        slowdown = posterior.predict_arrays([o.colocation_set for _, o in asked]).slowdown
        return np.array(
            [abs(1 / (slowdown[k, o.member] * examples.ratio[row]) - 1) for k, (row, o) in enumerate(asked)]
        )

    nothing, known = ConstantPredictor(predictor), AsMeasured(predictor, others, seed)
    rows = PosteriorConfig().most_rows
    return {
        "none": error(others, ROWS[-1], nothing),
        **{str(rows): error(others + few, rows, nothing) for rows in ROWS},
        "others_known": error(few, rows, known),
        "others_known_and_observed": error(others + few, rows, known),
    }


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="tables with Gavel's sets")
    parser.add_argument("--observe", type=int, default=4, help="sets observed (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="draws the sets (default: %(default)s)")
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "new_job", "observe", "seed")
    colocation = read_table(options.data, "colocation")
    colocation = colocation[colocation.campaign.isin(CAMPAIGNS)]
    examples = examples_of(colocation, read_table(options.data, "solo"))
    size = np.bincount(examples.set_index, minlength=len(examples.set_ids))
    kept = examples.resident & (size > 1)
    examples = examples.subset([s for s, keep in zip(examples.set_ids, kept, strict=True) if keep])
    predictor, everyone = load_predictor(), observations(examples)
    by_model: dict[str, dict[str, Floats]] = {}
    for architecture in sorted(set(examples.architectures)):
        by_model[architecture] = errors(
            predictor, examples, everyone, architecture, options.observe, options.seed
        )
        print(
            architecture,
            {rows: round(100 * float(e.mean()), 1) for rows, e in by_model[architecture].items()},
        )
    figures: dict[str, Any] = {"observe": options.observe, "observed_rows": len(everyone)}
    for rows in next(iter(by_model.values())):
        together = np.concatenate([errors_of[rows] for errors_of in by_model.values()])
        figures[rows] = {
            "error_percent": round(100 * float(together.mean()), 2),
            "by_model": {name: round(100 * float(e[rows].mean()), 2) for name, e in by_model.items()},
        }
    print({rows: figures[rows]["error_percent"] for rows in next(iter(by_model.values()))})
    record(stem, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
