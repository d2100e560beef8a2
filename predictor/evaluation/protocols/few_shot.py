"""Few-shot protocols: a model left out, some of its sets observed on each device, the rest scored."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from models.features import Floats
from predictor.evaluation.metrics import score
from predictor.evaluation.protocols.few_shot_learners import (
    FewShotAnswer,
    FewShotLearner,
    Fold,
    LearnerFactory,
    ProcessLearner,
    learners,
)
from predictor.examples.cross_fit import ExampleFold, architecture_groups, cross_fit
from predictor.examples.examples import Examples, Integers, examples_of
from predictor.examples.featurizer import Featurizer
from predictor.learning.probes import Expectation
from profiling.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

COUNTS = (0, 1, 2, 4, 8, 16)
PROBES = ("random", "chosen")
SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class FewShotProtocol:
    """A campaign whose architectures are left out in turn.

    Attributes:
        name, about: as of any protocol.
        campaigns: whose rows.
        counts: sets observed on each device.
    """

    name: str
    about: str
    campaigns: tuple[str, ...]
    counts: tuple[int, ...] = COUNTS


FEW_SHOT = {
    protocol.name: protocol
    for protocol in (
        FewShotProtocol(
            "lucid-few-shot", "a model never seen, some of its sets observed (members resident)", ("lucid",)
        ),
        FewShotProtocol(
            "gavel2019-few-shot", "a model never seen, some of its sets observed on each GPU", ("gavel-2019",)
        ),
        FewShotProtocol(
            "gavel2020-few-shot", "a model never seen, some of its sets observed on each GPU", ("gavel-2020",)
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Scored:
    """Rows of one fold after some observations."""

    ratio: Floats
    answer: FewShotAnswer
    rows: Integers


def resident_sets(colocation: pd.DataFrame, solo: pd.DataFrame, campaigns: Sequence[str]) -> Examples:
    """Measured sets of `campaigns` whose members were on the device at once.

    Raises:
        InputError: there are none.
    """
    frame = colocation[colocation.campaign.isin(campaigns)]
    if not len(frame):
        raise InputError(
            "the data lack the campaign",
            expected=", ".join(campaigns),
            got=", ".join(sorted(set(colocation.campaign))),
        )
    examples = examples_of(frame, solo[solo.campaign.isin(campaigns)])
    size = np.bincount(examples.set_index)
    keep = examples.resident & (size > 1)
    return examples.subset([s for s, k in zip(examples.set_ids, keep, strict=True) if k])


def devices_of(examples: Examples) -> dict[tuple[str, str], list[Integers]]:
    """Device and campaign to the sets on it that have a measured point: the numbers of these rows."""
    sets: dict[tuple[str, str], list[Integers]] = {}
    points = examples.scored
    for number in range(len(examples.set_ids)):
        rows = np.flatnonzero(examples.set_index == number)
        measured = rows[points[rows]]
        if len(measured):
            sets.setdefault((examples.devices[rows[0]], examples.campaign[rows[0]]), []).append(measured)
    return sets


def random_orders(examples: Examples, most: int, seed: int) -> list[Integers]:
    """The rows that are observed in each of `most` rounds: one set per device, drawn without replacement."""
    rng = np.random.default_rng(seed)
    drawn = [[sets[k] for k in rng.permutation(len(sets))[:most]] for sets in devices_of(examples).values()]
    return [
        np.concatenate([d[k] for d in drawn if k < len(d)] or [np.zeros(0, np.int64)]) for k in range(most)
    ]


class Chooser(Protocol):
    """A learner that knows how sure it is: what the probe rule needs."""

    observed: Floats
    noise: Floats

    def expectation(self, seen: Integers) -> Expectation:
        """What is expected of the test rows once those `seen` were observed."""
        ...

    def expected_noise(self, expected: Expectation) -> Floats:
        """[T] variance of an observation where it is expected."""
        ...

    def gains(self, expected: Expectation, unseen: Floats) -> Floats:
        """[T] weights of rows in the probe rule."""
        ...


def chosen_orders(examples: Examples, most: int, learner: Chooser) -> list[Integers]:
    """As `random_orders`, chosen by the probe rule, which knows what was observed in the rounds before."""
    left = {device: list(sets) for device, sets in devices_of(examples).items()}
    points, rounds = examples.scored, []
    seen = np.zeros(0, np.int64)
    expected = learner.expectation(seen)
    for _ in range(most):
        this: list[Integers] = []
        for sets in left.values():
            if not sets:
                continue
            unseen = points.astype(float)
            unseen[seen] = 0.0
            number, _ = expected.best(sets, learner.expected_noise(expected), learner.gains(expected, unseen))
            this.append(sets.pop(number))
            seen = np.concatenate([seen, this[-1]])
            expected = expected.observe(this[-1], learner.observed[this[-1]], learner.noise[this[-1]])
        rounds.append(np.concatenate(this) if this else np.zeros(0, np.int64))
    return rounds


def run(
    examples: Examples,
    featurizer: Featurizer,
    counts: Sequence[int] = COUNTS,
    seeds: Sequence[int] = SEEDS,
    make: LearnerFactory = learners,
    done: Callable[[str], None] = lambda _name: None,
) -> dict[str, dict[str, dict[int, list[Scored]]]]:
    """Learner -> probes -> count -> what was scored, over all folds and seeds."""
    results: dict[str, dict[str, dict[int, list[Scored]]]] = {}

    def observe(fold: ExampleFold) -> None:
        train, test = fold.train, fold.test
        if not test.scored.any() or not train.scored.any():
            return
        fitted = make(Fold.of(train, test, featurizer))
        orders: dict[str, list[list[Integers]]] = {
            "random": [random_orders(test, max(counts), seed) for seed in seeds]
        }
        process = fitted.get("process")
        if isinstance(process, ProcessLearner):
            orders["chosen"] = [chosen_orders(test, max(counts), process)]
        for name, learner in fitted.items():
            for probes, several in orders.items():
                for rounds in several:
                    into = results.setdefault(name, {}).setdefault(probes, {})
                    _score_rounds(learner, test, rounds, counts, into)
        done(*fold.group.architectures)

    list(cross_fit(examples, architecture_groups(examples), observe))
    return results


def _score_rounds(
    learner: FewShotLearner,
    test: Examples,
    rounds: list[Integers],
    counts: Sequence[int],
    into: dict[int, list[Scored]],
) -> None:
    points = test.scored
    for count in counts:
        seen = np.concatenate([np.zeros(0, np.int64), *rounds[:count]])
        # The members of an observed set were all observed, with a point or without.
        observed = np.isin(test.set_index, test.set_index[seen])
        rows = np.flatnonzero(points & ~observed)
        if len(rows):
            into.setdefault(count, []).append(Scored(test.ratio[rows], learner.answer(seen), rows))


def figures(results: dict[str, dict[str, dict[int, list[Scored]]]]) -> dict[str, Any]:
    """Learner -> probes -> count -> metrics of the co-located / solo throughput."""
    return {
        name: {
            probes: {str(count): _metrics(parts) for count, parts in sorted(by_count.items())}
            for probes, by_count in by_probes.items()
        }
        for name, by_probes in results.items()
    }


def _metrics(parts: list[Scored]) -> dict[str, Any]:
    def every(pick: Callable[[FewShotAnswer], Floats | None]) -> Floats | None:
        values = [(pick(p.answer), p.rows) for p in parts]
        return (
            None
            if values[0][0] is None
            else np.exp(np.concatenate([v[r] for v, r in values if v is not None]))
        )

    predicted = every(lambda a: a.log_ratio)
    assert predicted is not None
    measured = np.concatenate([p.ratio for p in parts])
    return score(measured, predicted, every(lambda a: a.lower), every(lambda a: a.upper))


def report(
    protocol: FewShotProtocol,
    tables: dict[str, Any],
    command: str,
    done: Callable[[str], None] = lambda _n: None,
) -> dict[str, Any]:
    """Run a protocol on tables of measurements; everything that is needed to read the figures and to repeat them.

    Raises:
        InputError: the tables lack its campaign.
    """
    from predictor.examples.featurizer import shared_featurizer
    from profiling.measure.environment import describe_environment

    examples = resident_sets(tables["colocation"], tables["solo"], protocol.campaigns)
    results = run(examples, shared_featurizer(), protocol.counts, done=done)
    return {
        "protocol": protocol.name,
        "about": protocol.about,
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": describe_environment("cpu"),
        "target": "throughput_ratio",
        "sets": len(examples.set_ids),
        "points": int(examples.scored.sum()),
        "counts": list(protocol.counts),
        "seeds": list(SEEDS),
        "learners": figures(results),
    }


def markdown(result: dict[str, Any]) -> str:
    """A report's figures as a Markdown page: MAPE % (R2), and the coverage of 90 % intervals."""
    about = (
        "MAPE % (R2) of the co-located / solo throughput after K observed sets per device; "
        f"{result['sets']} sets, {result['points']} points, seeds {', '.join(map(str, result['seeds']))}. "
        "Sets are chosen by the probe rule of `process` for all learners alike."
    )
    return learning_page(result, about, "sets", lambda f: f"{f['mape_percent']:.1f} ({f['r2']:.2f})")


def learning_page(
    result: dict[str, Any], about: str, chosen_by: str, cell: Callable[[dict[str, float]], str]
) -> str:
    """A Markdown page of figures against the number of observations.

    Args:
        about: behind the report's own words.
        chosen_by: title of the second column: how what is observed or asked is chosen.
        cell: of the figures of one learner after K observations.
    """
    counts = [str(count) for count in result["counts"]]
    lines = [
        f"# {result['protocol']}",
        "",
        f"{result['about'][0].upper()}{result['about'][1:]}. {about}",
        "",
        f"`{result['command']}`, {result['date']}, {result['machine'].get('processor', 'unknown processor')}",
        "",
        f"| learner | {chosen_by} | {' | '.join(f'K = {c}' for c in counts)} |",
        "|" + "---|" * (len(counts) + 2),
    ]

    def row(title: str, by: str, text: Callable[[dict[str, float]], str], figures: dict[str, Any]) -> str:
        cells = [text(figures[c]) if c in figures else "-" for c in counts]
        return f"| {title} | {by} | {' | '.join(cells)} |"

    for name, groups in result["learners"].items():
        lines += [row(name, by, cell, figures) for by, figures in groups.items()]
    for by, figures in result["learners"].get("process", {}).items():
        lines.append(row("process, coverage", by, lambda f: f"{100 * f['coverage_90']:.0f} %", figures))
    return "\n".join(lines) + "\n"
