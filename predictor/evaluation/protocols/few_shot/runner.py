"""Few-shot protocols: a model is held out, some of its sets are observed, and the rest are scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.sets import rows_of
from models.features import Floats
from predictor.evaluation.metrics import score
from predictor.evaluation.protocols.few_shot import mixes, networks
from predictor.evaluation.protocols.few_shot.contenders import LEARNERS, LearnerFactory, learners
from predictor.evaluation.protocols.few_shot.learners import FewShotAnswer, FewShotLearner, Fold
from predictor.evaluation.protocols.few_shot.orders import chosen_orders, random_orders
from predictor.evaluation.protocols.few_shot.processes import ProcessLearner
from predictor.examples.cross_fit import ExampleFold, architecture_groups, cross_fit
from predictor.examples.examples import Examples, Integers, examples_of
from predictor.examples.featurizer import Featurizer, shared_featurizer

if TYPE_CHECKING:
    import pandas as pd

COUNTS = (0, 1, 2, 4, 8, 16)
SEEDS = (0, 1, 2)
TARGET = "throughput_ratio"


Tables = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FewShotProtocol:
    """A campaign whose architectures are held out in turn.

    Attributes:
        name, about: as for any protocol.
        campaigns: campaigns of the rows.
        sets: makes the sets from tables; None: the resident sets of the campaigns.
        learners: makes the learners' factory from tables.
        names: names of the learners.
    """

    name: str
    about: str
    campaigns: tuple[str, ...]
    sets: Callable[[Tables], Examples] | None = None
    learners: Callable[[Tables], LearnerFactory] = networks.learners_of
    names: tuple[str, ...] = networks.WITH_NETWORK


FEW_SHOT = (
    FewShotProtocol(
        "lucid-few-shot", "a model never seen, some of its sets observed (members resident)", ("lucid",)
    ),
    *(
        FewShotProtocol(
            f"gavel{year}-few-shot",
            "a model never seen, some of its sets observed on each GPU",
            (f"gavel-{year}",),
        )
        for year in (2019, 2020)
    ),
    FewShotProtocol(
        "miso-few-shot",
        "a model never seen, some mixes with it observed under MPS with the whole card and with 14 % for each process",
        (mixes.CAMPAIGN,),
        mixes.mixes_as_sets,
        mixes.learners_of,
        LEARNERS,
    ),
)


@dataclass(frozen=True, slots=True)
class Scored:
    """What was scored in one fold after some observations.

    Attributes:
        ratio: [n] measured throughput ratios.
        answer: for all test rows.
        rows: [n] numbers of the scored rows.
    """

    ratio: Floats
    answer: FewShotAnswer
    rows: Integers


def resident_sets(colocation: pd.DataFrame, solo: pd.DataFrame, campaigns: Sequence[str]) -> Examples:
    """Measured sets of `campaigns` whose members were resident at once.

    Raises:
        InputError: there are none.
    """
    examples = examples_of(rows_of(colocation, campaigns), solo[solo.campaign.isin(campaigns)])
    size = np.bincount(examples.set_index)
    keep = examples.resident & (size > 1)
    return examples.subset([s for s, k in zip(examples.set_ids, keep, strict=True) if k])


def run(
    examples: Examples,
    featurizer: Featurizer,
    counts: Sequence[int] = COUNTS,
    seeds: Sequence[int] = SEEDS,
    make: LearnerFactory = learners,
    done: Callable[[str], None] = lambda _name: None,
) -> dict[str, dict[str, dict[int, list[Scored]]]]:
    """Learner -> probes -> count -> scored rows, over all folds and seeds."""
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
        done(" or ".join(sorted(fold.group.architectures)))

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
        # All members of an observed set count as observed, whether or not they have a point.
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
    def every(name: str) -> Floats:
        return np.exp(np.concatenate([getattr(p.answer, name)[p.rows] for p in parts]))

    ends = () if parts[0].answer.lower is None else (every("lower"), every("upper"))
    return score(np.concatenate([p.ratio for p in parts]), every("log_ratio"), *ends)


def report(
    protocol: FewShotProtocol,
    tables: Tables,
    command: str,
    done: Callable[[str], None] = lambda _n: None,
) -> dict[str, Any]:
    """Run a protocol on tables of measurements.

    Returns everything needed to read the figures and to reproduce them.

    Raises:
        InputError: the tables lack its campaign.
    """
    from profiling.measure.environment import provenance

    if protocol.sets is None:
        examples = resident_sets(tables["colocation"], tables["solo"], protocol.campaigns)
    else:
        examples = protocol.sets(tables)
    make = protocol.learners(tables)
    results = run(examples, shared_featurizer(), make=make, done=done)
    return {
        "protocol": protocol.name,
        "about": protocol.about,
        **provenance(command),
        "target": TARGET,
        "sets": len(examples.set_ids),
        "points": int(examples.scored.sum()),
        "counts": list(COUNTS),
        "seeds": list(SEEDS),
        "learners": figures(results),
    }
