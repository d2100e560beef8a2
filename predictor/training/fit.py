"""From tidy tables to a fitted predictor: encoder, networks, heads, intervals, domain, manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from models.colocation_network import NetworkConfig
from predictor.config import LossCallback, TrainingConfig
from predictor.examples.cross_fit import ExampleFold, Group, architecture_groups, cross_fit
from predictor.examples.examples import Examples, SoloExamples, examples_of
from predictor.examples.featurizer import Featurizer
from predictor.fitted.coverage import Coverage
from predictor.fitted.domain import Domain
from predictor.fitted.intervals import GROUPS, Intervals
from predictor.fitted.model import CotenantModel
from predictor.fitted.utilization import independent_ratio, measured_difference, predicted_ratio
from predictor.training.heads import fit_heads
from predictor.training.networks import fit
from predictor.training.progress import NOTHING_KEPT, Progress
from predictor.training.replay import remember
from profiling.devices import get_device, split_device
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from predictor.fitted.fitted import Fitted


# Arguments of `Intervals.fit`: log error and predicted log slowdown per group of intervals; solo step times;
# utilisation.
Residuals = tuple[dict[str, tuple[np.ndarray, np.ndarray]], np.ndarray, np.ndarray]

# Most models fitted to calibrate intervals; each holds out its share of the architectures.
CROSS_FITS = 6

# Measurements of one job on one device type that differ by more than this factor measure different
# quantities.
SAME_STEP = 3.0


def solo_examples(solo: pd.DataFrame) -> SoloExamples:
    """Solo step times on one GPU as training rows of the encoder.

    Campaigns that differ on the same job by more than `SAME_STEP` define a step differently; the shortest is
    used.
    """
    rows = solo[(solo.gpus == 1) & solo.step_time_s.notna()]
    shortest = rows.groupby(["workload", "device"], observed=True).step_time_s.transform("min")
    rows = rows[rows.step_time_s <= SAME_STEP * shortest]
    return SoloExamples(
        tuple(Workload.parse(spec) for spec in rows.workload),
        tuple(rows.device),
        rows.step_time_s.to_numpy(dtype=float),
    )


def fit_tables(
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    network: NetworkConfig,
    config: TrainingConfig,
    featurizer: Featurizer,
    report: LossCallback | None = None,
    progress: Progress = NOTHING_KEPT,
) -> Fitted:
    """Fit everything that a checkpoint stores.

    Intervals come from holding out each architecture in turn (with one network instead of the ensemble, which
    errs on the wide side), including its solo step times.
    """
    from predictor.fitted.fitted import Fitted, Manifest

    examples = examples_of(colocation, solo)
    model = fit(examples, solo_examples(solo), featurizer, network, config, report, progress=progress)
    intervals = cross_fitted_intervals(examples, solo, network, config, featurizer, report, progress)
    jobs = dict.fromkeys(
        (w.without_solo(), d) for w, d in zip(examples.workloads, examples.devices, strict=True)
    )
    encoded = model.encode(jobs)
    points = np.array([encoded[job].embedding for job in jobs])
    names = [workload.model for workload, _ in jobs]
    manifest = Manifest(
        examples.set_ids,
        tuple(sorted(set(colocation.source))),
        tuple(sorted(set(colocation.licence))),
        tuple(sorted(set(examples.architectures))),
        int(np.bincount(examples.set_index).max()),
        coverage=Coverage.of(examples.workloads, examples.devices, examples.mode),
        partners=examples.partners,
    )
    return Fitted(
        model,
        fit_heads(examples, solo, featurizer),
        intervals,
        Domain.fit(points, names),
        manifest,
        remember(model, examples, config.seed),
    )


def cross_fitted_intervals(
    examples: Examples,
    solo: pd.DataFrame,
    network: NetworkConfig,
    config: TrainingConfig,
    featurizer: Featurizer,
    report: LossCallback | None = None,
    progress: Progress = NOTHING_KEPT,
) -> Intervals:
    """Intervals from residuals of architectures held out in turn, several at a time if there are many.

    How much wider they are on a device type that was never measured comes from holding out each type together
    with a part of the architectures, if there are at least two types.
    """
    single = replace(config, ensemble=1)

    def errors(fold: ExampleFold) -> dict[str, np.ndarray] | None:
        if not fold.train.set_ids:
            return None

        def run() -> dict[str, np.ndarray]:
            model = fit(
                fold.train,
                solo_examples(fold.seen(solo)),
                featurizer,
                network,
                single,
                within(report, fold.name),
                progress=progress.within(fold.name),
                held_out=fold.test,
            )
            return left_out_errors(model, fold, solo)

        return progress.arrays(fold.name, run)

    def residuals(groups: Iterable[Group]) -> Residuals:
        parts = cross_fit(examples, groups, errors)
        return residuals_of([part for part in parts if part is not None])

    by_architecture = architecture_groups(examples, CROSS_FITS)
    intervals = Intervals.fit(*residuals(by_architecture))
    return intervals.widened_by(residuals(_device_groups(examples, by_architecture))[0])


def _device_groups(examples: Examples, by_architecture: Sequence[Group]) -> list[Group]:
    """Each GPU type with one group of architectures: scored sets have an unseen device and an unseen
    architecture.

    CPUs are not held out, because sharing a CPU says nothing about how much an unmeasured GPU differs from
    measured ones.
    """
    types = np.array([split_device(d)[0] for d in examples.devices])
    devices = sorted(device for device in set(types.tolist()) if not get_device(device).is_cpu)
    groups = []
    for number, device in enumerate(devices if len(devices) > 1 else []):
        group = by_architecture[number % len(by_architecture)]
        on_device = frozenset(examples.set_ids[s] for s in np.unique(examples.set_index[types == device]))
        groups.append(
            Group(
                f"left out {device}",
                group.hidden | on_device,
                group.hidden & on_device,
                group.architectures,
            )
        )
    return groups


def left_out_errors(
    model: CotenantModel, fold: ExampleFold, solo: pd.DataFrame, answered: bool = False
) -> dict[str, np.ndarray]:
    """Errors of `model` on the test side of `fold`, for sets and for solo runs.

    Args:
        model: trained without it.
        fold: sets left out.
        solo: all solo runs.
        answered: score the slowdowns of sets whose campaign is not named, as users ask, without the effect of the
            campaigns' solo runs.

    Returns:
        per group of intervals, `GROUP` the log error of the ratio and `GROUP slowdown` the predicted log
        slowdown, of measured, uncensored rows; `alone`, the log error of the solo step times; `utilization`,
        the error of the sets' utilisation.
    """
    errors = {}
    left_out = fold.test.without_campaign() if answered else fold.test
    scored = left_out.scored
    for kind, asked in (("solo", left_out), ("graph", left_out.without_solo())):
        ratio, slow = model.predict_log_ratio(asked)
        predicted = -slow if answered else ratio
        errors[kind] = np.log(left_out.ratio[scored]) - predicted[scored]
        errors[f"{kind} slowdown"] = slow[scored]
    off = predicted_ratio(model, left_out) - independent_ratio(model, left_out)
    utilization_residual = measured_difference(model, left_out).numpy() - off
    return {
        **errors,
        "alone": solo_errors(model, fold.unseen(solo)),
        "utilization": utilization_residual[~np.isnan(utilization_residual)],
    }


def residuals_of(parts: Sequence[dict[str, np.ndarray]]) -> Residuals:
    """Arguments of `Intervals.fit` from several results of `left_out_errors`, concatenated."""

    def joined(name: str) -> np.ndarray:
        return np.concatenate([part[name] for part in parts]) if parts else np.zeros(0)

    return (
        {kind: (joined(kind), joined(f"{kind} slowdown")) for kind in GROUPS},
        joined("alone"),
        joined("utilization"),
    )


def within(report: LossCallback | None, part: str) -> LossCallback | None:
    """`report` with the part of the run prefixed to the name of the phase."""
    if report is None:
        return None
    return lambda phase, step, steps, loss: report(f"{part}: {phase}", step, steps, loss)


def solo_errors(model: CotenantModel, solo: pd.DataFrame) -> np.ndarray:
    """Log predicted / measured step time of every job measured alone."""
    rows = solo_examples(solo)
    known = model.encode(zip(rows.workloads, rows.devices, strict=True))
    predicted = np.array(
        [known[(w, d)].step_time_s for w, d in zip(rows.workloads, rows.devices, strict=True)]
    )
    return np.log(predicted / rows.step_time_s) if len(predicted) else np.zeros(0)
