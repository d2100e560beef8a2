"""Contribution of each part of the predictor: remove one, keep the rest, and score on left-out models.

    python -m benchmarks.ablation TABLES
    python -m benchmarks.ablation TABLES --heads

Uses the protocols `lucid-by-model` and `gavel2020-by-model`. `--heads` tests parts used only in training: the
head of the campaigns' baselines, hidden campaigns, and the forest that labels utilisation (also scored on
`lucid-utilization-by-model`). An interrupted run resumes; the encoder is fitted once per fold for all
variants that do not change it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import RESULTS, record
from datasets.bundle import Bundle
from predictor.evaluation.protocols.networks import NetworkContender, make_contender
from predictor.evaluation.protocols.registry import Contender, contenders
from predictor.examples.featurizer import shared_featurizer

if TYPE_CHECKING:
    from models.workload_encoder import WorkloadEncoder
    from predictor.evaluation.protocols.runner import Plan

PROTOCOLS = ("lucid-by-model", "gavel2020-by-model")
# Variant to changes of the configuration; the prefixes `encoder_` and `training_` select those parts.
VARIANTS: dict[str, dict[str, Any]] = {
    "all parts": {},
    "without graph": {"encoder_use_graph": False},
    "without device": {"use_device": False},
    "without edge": {"use_edge": False, "encoder_use_edge": False},
    "without prior": {"use_prior": False},
    "without pre-training": {"training_encoder_steps": 0},
    "the paper's form of layer": {"form": "paper", "encoder_form": "paper"},
    "without the forest's batches": {"training_mixed_sets": 0},
    "without processor sharing's batches": {"training_shared_sets": 0, "training_inferred_sets": 0},
    "without the process": {"training_process": False},
}

# Variant to changes, as above; `None` leaves the forest that labels utilisation out of the teacher.
HEADS: dict[str, dict[str, Any] | None] = {
    "all parts": {},
    "without the baselines' head": {"training_baseline_decay": 100.0},
    "without hidden campaigns": {"training_campaign_dropout": 0.0},
    "without the utilization forest": None,
}
# A fifth of the training, which is enough to compare the contributions of parts.
QUICK = {
    "training_epochs": 60,
    "training_encoder_steps": 20,
    "training_mixed_sets": 150,
    "training_synthetic_batches": 3,
    "training_teacher_trees": 30,
}
# Variants that each protocol can tell apart: Gavel did not measure utilisation.
HEADS_OF = {
    "gavel2020-by-model": ("all parts", "without the baselines' head", "without hidden campaigns"),
    "lucid-utilization-by-model": ("all parts", "without the utilization forest"),
    "lucid-by-model": tuple(HEADS),
}


class SharedEncoder:
    """A network contender that reuses the encoder of the last fold if it would fit the same one again."""

    last: tuple[Any, WorkloadEncoder] | None = None

    def __init__(self, inner: NetworkContender) -> None:
        self.inner = inner

    def fit(self, train: Bundle, seed: int = 0) -> SharedEncoder:
        """See `NetworkContender.fit`."""
        from predictor.training.fit import solo_examples
        from predictor.training.networks import fit_encoder

        network, training = self.inner.network, replace(self.inner.training, seed=seed)
        solo = solo_examples(train.solo)
        key = (solo.workloads, solo.devices, network.encoder, training.encoder_steps, seed)
        if SharedEncoder.last is None or SharedEncoder.last[0] != key:
            SharedEncoder.last = key, fit_encoder(solo, shared_featurizer(), network, training)
        self.inner.fit(train, seed, SharedEncoder.last[1])
        return self

    def predict(self, test: Bundle) -> Any:
        """See `NetworkContender.predict`."""
        return self.inner.predict(test)


class WithoutUtilizationForest(SharedEncoder):
    """Like `SharedEncoder`, but the teacher does not label utilisation."""

    def fit(self, train: Bundle, seed: int = 0) -> SharedEncoder:
        from predictor.training.teachers import forest
        from predictor.training.teachers.mixtures import Seen

        class SlowdownTeacher(forest.ForestTeacher):
            def fit(self, ways: list[Seen], log_ratio: Any) -> forest.ForestTeacher:
                nothing = [
                    replace(w, utilization_residual=np.full_like(w.utilization_residual, np.nan))
                    for w in ways
                ]
                return super().fit(nothing, log_ratio)

        with patch.object(forest, "ForestTeacher", SlowdownTeacher):
            return super().fit(train, seed)


def _make(changes: dict[str, Any] | None, common: dict[str, Any]) -> SharedEncoder:
    if changes is None:
        return WithoutUtilizationForest(make_contender(**common))
    return SharedEncoder(make_contender(**(common | changes)))


def run_by_fold(plan: Plan, title: str) -> None:
    """Run the missing cells fold by fold, so that all variants of a fold share its encoder."""
    from predictor.evaluation.protocols.runner import run_missing
    from serving.cli.output import progress

    by_fold = replace(plan, missing=tuple(sorted(plan.missing, key=lambda cell: cell.fold.name)))
    with progress() as bar:
        task = bar.add_task(title, total=len(by_fold.missing))
        run_missing(by_fold, lambda _cell: bar.advance(task))


def main() -> None:
    """Run what is missing, print and write the table."""
    from datasets.tables import read_all
    from predictor.evaluation.protocols.catalogue import get_protocol, make_trial
    from predictor.evaluation.protocols.runner import collect, make_plan

    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("tables", type=Path, help="folder of imported tables")
    parser.add_argument(
        "--protocol",
        choices=sorted({*PROTOCOLS, *HEADS_OF}),
        help="only this one, written to a separate file",
    )
    parser.add_argument(
        "--heads", action="store_true", help="training heads and settings instead of the network's parts"
    )
    parser.add_argument("--folds", type=int, help="number of folds of each protocol (default: all)")
    parser.add_argument(
        "--variant",
        action="append",
        choices=list(VARIANTS | HEADS),
        help="only this one; repeatable (default: all)",
    )
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each variant, scored together")
    parser.add_argument("--quick", action="store_true", help="a fifth of the training for every variant")
    add_name(parser)
    options = parser.parse_args()
    name = "ablation_heads" if options.heads else "ablation"
    name += "_quick" if options.quick else ""
    own = f"{name}_{options.protocol}" if options.protocol else name
    stem = record_name(parser, options, own, "folds", "variant")
    tables = read_all(options.tables)
    version = next(c.current_version for c in contenders(["e-ggat"]))
    figures: dict[str, Any] = {}
    protocols = tuple(HEADS_OF) if options.heads else PROTOCOLS
    for protocol in [options.protocol] if options.protocol else protocols:
        trial = make_trial(get_protocol(protocol), tables)
        if options.folds:
            trial = replace(trial, folds=trial.folds[: options.folds])
        changes = {v: HEADS[v] for v in HEADS_OF[protocol]} if options.heads else VARIANTS
        common = QUICK if options.quick else {}
        variants = [
            Contender(v, partial(_make, change, common), version=version)
            for v, change in changes.items()
            if not options.variant or v in options.variant
        ]
        plan = make_plan(trial, variants, range(options.seeds), RESULTS / "ablation" / name / protocol)
        run_by_fold(plan, protocol)
        figures[protocol] = {
            variant: {
                **{key: result["metrics"][key] for key in ("mape_percent", "mae", "r2", "spearman")},
                "mape_percent_by_seed": list(result["by_seed"].values()),
            }
            for variant, result in collect(plan).items()
        }
        for variant, result in figures[protocol].items():
            print(
                f"{protocol:20} {variant:38} MAE {result['mae']:.4f} {result['mape_percent']:5.1f} %  R2 {result['r2']:5.2f}  rho {result['spearman']:4.2f}"
            )
    record(stem, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
