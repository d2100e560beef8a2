"""The model card: training data, purpose, accuracy and limits of a predictor."""

from __future__ import annotations

import math
from typing import Any

from datasets.sources import withheld
from predictor.fitted.fitted import Manifest
from predictor.fitted.intervals import NEW_DEVICE_LOG_ERROR, Intervals
from predictor.predictor import Predictor

PAIRS_LEFT_OUT = "Held-out pairs of models (co-located / solo throughput)"


def model_card(
    predictor: Predictor, comparison: dict[str, dict[str, Any]], compared: str = PAIRS_LEFT_OUT
) -> str:
    """Markdown generated from the run; `compared` describes the comparison."""
    fitted = predictor.fitted_
    manifest, intervals, heads = fitted.manifest, fitted.intervals, fitted.heads
    return f"""# Model card: {predictor.version}

Predicts step time, slowdown, memory and utilisation of training jobs that share a device, from their computation graphs.

## Training data and model

* {_counted(len(manifest.set_ids), "measured co-location set")}; sources: {", ".join(manifest.sources)}; licences: {", ".join(manifest.licences)}.{_own_use(manifest)}
* Architectures: {", ".join(manifest.architectures)}.
* {_counted(len(fitted.model.networks), "co-location network")} of width {fitted.model.config.width} over one workload encoder of width {fitted.model.config.encoder.width}.{_taught(predictor)}{_process(predictor)}{_ancestors(manifest)}

## Accuracy

{_accuracy(comparison, compared)}

Intervals should cover 90 % of new values. {_calibration(intervals)} For a pair, the
half width of the log ratio is {intervals.quantile["solo"]:.2f} x ({intervals.floor} + log slowdown) with solo measurements and
{intervals.quantile["graph"]:.2f} x ({intervals.floor} + log slowdown) without; the interval of an unmeasured
solo step time extends by a factor of {_factor(intervals.solo_log_error)} in each direction
({_factor(math.hypot(intervals.solo_log_error, NEW_DEVICE_LOG_ERROR))} on a CPU, or a GPU type on which no step time was measured).

## Limits

* Memory is analytic: the process's context, state, {heads.activation_factor:.2f} x activations from the graph
  ({heads.half_activation_factor:.2f} in half precision) or, if larger, what the optimiser's step allocates, and the largest workspace. Without GPU memory in the training rows, these
  are defaults. Utilisation is the share of time in which any member's kernel runs, assuming independent phases{_learned_utilization(predictor)}.
* Co-location was measured on {", ".join(manifest.coverage.devices)} ({", ".join(manifest.coverage.sharing)}), of
  {" and ".join(manifest.coverage.modes)} jobs, in {", ".join(manifest.coverage.precisions)}; other predictions state what was not measured, and their
  intervals are {intervals.device_factor["solo"]:.2f} times as wide with solo measurements, {intervals.device_factor["graph"]:.2f} times without{_device_calibration(intervals)}.{_shared(manifest)}
* A workload outside the training domain is flagged; its interval may be too narrow.
* The largest sets among the training rows have {manifest.largest_set} members.
"""


def _accuracy(comparison: dict[str, dict[str, Any]], compared: str) -> str:
    if not comparison:
        return "Not measured: there were too few pairs of models to hold any out."
    rows = (
        f"| {name} | {s['n']} | {_number(s['mape_percent'])} | {_number(s['mae'], 3)} | {_number(s['r2'], 2)} | {_number(s['spearman'], 2)} |"
        for name, s in comparison.items()
    )
    head = ("| predictor | rows | MAPE % | MAE | R2 | Spearman |", "|---|---|---|---|---|---|")
    return "\n".join((f"{compared}:", "", *head, *rows))


def _calibration(intervals: Intervals) -> str:
    if intervals.is_calibrated:
        return "They are calibrated on held-out architectures."
    return "They are not calibrated, because no architecture could be held out: the widths are defaults."


def _device_calibration(intervals: Intervals) -> str:
    if intervals.is_calibrated_for_devices:
        return ""
    return " (not calibrated: no GPU type could be held out)"


def _own_use(manifest: Manifest) -> str:
    names = ", ".join(source.name for source in withheld(manifest.sources))
    return f" For internal use only: the licence of {names} does not allow redistribution." if names else ""


def _taught(predictor: Predictor) -> str:
    config = predictor.training
    if config is None:
        return ""
    teachers = []
    if config.mixed_sets:
        teachers.append("by a forest fitted to the measured sets")
    if config.shared_sets:
        teachers.append("by processor sharing where utilisation is known")
    if config.inferred_sets:
        teachers.append("by processor sharing on GPU types without measured sets")
    return f"\n* Also trained on synthetic sets, labelled {'; '.join(teachers)}." if teachers else ""


def _process(predictor: Predictor) -> str:
    process = predictor.fitted_.model.process
    if process is None:
        return ""
    return f"\n* A Gaussian process over {len(process.seen.members)} measured members; the slowdown of a pair is the geometric mean of its prediction and the networks'. Larger sets, and devices and sharing modes without measured sets, are predicted by the networks alone; time-sliced larger sets get the mean correction of their pairs."


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _shared(manifest: Manifest) -> str:
    if not manifest.coverage.modes or "inference" in manifest.coverage.modes:
        return ""
    return "\n* Sets of inference jobs were not measured; they are predicted by processor sharing."


def _ancestors(manifest: Manifest) -> str:
    if not manifest.ancestors:
        return ""
    return f"\n* Fine-tuned from {', then '.join(manifest.ancestors)}; the last time on {_counted(len(manifest.added_set_ids), 'new set')}."


def _learned_utilization(predictor: Predictor) -> str:
    learned = any(bool(network.usage.weight.any()) for network in predictor.fitted_.model.networks)
    return ", plus a learned correction" if learned else "; none was measured on a GPU"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _factor(log_error: float) -> str:
    return f"{math.exp(log_error):.1f}"
