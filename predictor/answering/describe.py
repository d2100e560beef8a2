"""Turns arrays into `Prediction`s with intervals and reasons, for all sets of a call together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models.features import Floats
from predictor.answering.bounds import within_shares
from predictor.answering.explain import sentence, shares_of
from predictor.answering.job_table import JobTable
from predictor.answering.own_slices import Cut, OwnSlices
from predictor.answering.set_network import prior_parts
from predictor.answering.settings import setting_rows
from predictor.answering.shares import remaining_contention
from predictor.answering.upper_ends import upper_ends_of_parts
from predictor.examples.examples import Integers
from predictor.examples.plausibility import BOOSTED, MOST_OFF
from predictor.fitted.device_memory import set_memory_bytes, set_utilization_ratio
from predictor.fitted.intervals import NEW_DEVICE_LOG_ERROR, SLICE_LOG_ERROR, effective_members
from predictor.types import MemberPrediction, Prediction, PredictionArrays, Quantity
from profiling.devices import DeviceSpec, get_device
from profiling.workload import PREDICTED_PRECISIONS, ColocationSet, Workload

if TYPE_CHECKING:
    from models.cost import CostModel
    from predictor.examples.featurizer import JobOnDevice
    from predictor.fitted.fitted import Fitted


@dataclass(frozen=True, slots=True)
class _Facts:
    """Facts repeated in every answer about a row of the job table. Errors are 90 % bounds of a log.

    `unmeasured` says that no step time was measured on the device or in the precision, if one is predicted.
    `doubts` are reasons not to trust what was measured of the job or is predicted for it.
    `least_s` is the shortest solo step time that the data sheet allows, 0 for a measured one.
    """

    spec: str
    model: str
    job: JobOnDevice
    measured: bool
    in_domain: bool
    unmeasured: str
    doubts: tuple[str, ...]
    solo_error: float
    least_s: float
    memory_error: float
    memory_most_bytes: float
    state_bytes: float

    def memory(self, memory_bytes: float) -> Quantity:
        """Memory with its interval, which for a job alone is that of the total: state is known exactly."""
        state = min(self.state_bytes, memory_bytes)
        upper = min(state + (memory_bytes - state) * math.exp(self.memory_error), self.memory_most_bytes)
        return Quantity(memory_bytes, memory_bytes**2 / upper, upper)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Arrays of one call as plain lists.

    Reading a number from an array costs more than most operations on it.
    """

    solo: list[list[float]]
    slowdown: list[list[float]]
    memory: list[list[float]]
    utilization: list[list[float]]
    together: list[float]
    upper: list[float]
    busy: list[float]
    half: list[list[float]]
    fits: list[bool]


class Describer:
    """Makes `Prediction`s of one fitted model.

    Intervals, domain and demands of every row of its table are cached.
    """

    def __init__(self, fitted: Fitted, table: JobTable, slices: OwnSlices) -> None:
        self.fitted, self.table, self.slices = fitted, table, slices
        self._facts: dict[int, _Facts] = {}

    def describe(
        self, version: str, sets: Sequence[ColocationSet], rows: Integers, arrays: PredictionArrays
    ) -> list[Prediction]:
        """One prediction per set, with intervals and reasons.

        Args:
            version: model version named in the predictions.
            sets: [S] the queried sets.
            rows: [S, M] rows of the job table, -1 where a set has fewer members.
            arrays: point predictions for these rows.
        """
        if not sets:
            return []
        model, table, heads = self.fitted.model, self.table, self.fitted.heads
        sharing = np.array([colocation_set.sharing for colocation_set in sets])
        parts = prior_parts(
            table.prepared[0],
            rows,
            *table.networks[0].prior_weights(setting_rows(sharing.tolist(), model.campaigns)),
        )
        solo_use = np.where(arrays.mask, table.utilization[rows], 0.0)
        facts = [self._facts_of(s, row) for s, row in zip(sets, rows.tolist(), strict=True)]
        together = [self._together(s, own) for s, own in zip(sets, facts, strict=True)]
        numbers = _Numbers(
            arrays.solo_step_time_s.tolist(),
            arrays.slowdown.tolist(),
            arrays.memory_bytes.tolist(),
            arrays.utilization_ratio.tolist(),
            set_memory_bytes(arrays.memory_bytes, heads).tolist(),
            arrays.memory_upper_bytes.tolist(),
            set_utilization_ratio(solo_use, table.utilization_residual(rows)).tolist(),
            self._half_widths(rows, arrays, sharing, facts, together).tolist(),
            arrays.fits.tolist(),
        )
        return [
            self._one(version, k, colocation_set, numbers, row, part, facts[k], together[k])
            for k, (colocation_set, row, part) in enumerate(
                zip(sets, rows.tolist(), parts.tolist(), strict=True)
            )
        ]

    def _half_widths(
        self,
        rows: Integers,
        arrays: PredictionArrays,
        sharing: NDArray[np.str_],
        facts: Sequence[Sequence[_Facts]],
        together: Sequence[Sequence[str]],
    ) -> Floats:
        """[S, M] half widths of the intervals of log slowdowns. Arguments are those of `describe` and `_one`, per set."""
        intervals, table = self.fitted.intervals, self.table
        groups = ["solo" if all(f.measured for f in own) else "graph" for own in facts]
        quantile = np.array(
            [
                intervals.quantile[group] * (intervals.device_factor[group] if never else 1.0)
                for group, never in zip(groups, together, strict=True)
            ]
        )
        use, share = (
            np.where(arrays.mask, values[rows], 0.0) for values in (table.utilization, table.sm_share)
        )
        weight = use * remaining_contention(share)
        members = effective_members(weight[arrays.mask], np.nonzero(arrays.mask)[0], len(rows))
        log_slowdown = np.log(arrays.slowdown)
        half = quantile[:, None] * intervals.scale(log_slowdown, members[:, None])
        upper = upper_ends_of_parts(table, rows, sharing, quantile, intervals)
        return np.where((sharing == "mig")[:, None], SLICE_LOG_ERROR, np.maximum(half, upper - log_slowdown))

    def _one(
        self,
        version: str,
        k: int,
        colocation_set: ColocationSet,
        numbers: _Numbers,
        rows: list[int],
        parts: list[list[float]],
        facts: list[_Facts],
        together: list[str],
    ) -> Prediction:
        device, count = get_device(colocation_set.device), len(colocation_set.workloads)
        cut = self.slices.cut(rows[:count]) if colocation_set.sharing == "mig" else None
        fits, upper = numbers.fits[k], numbers.upper[k]
        room = room_in_words(fits, upper, device) if cut is None else _cut_in_words(cut, facts)
        log_errors = numbers.half[k][:count] if count > 1 else [0.0]
        members = [
            self._member(numbers, k, i, fact, log_error)
            for i, (fact, log_error) in enumerate(zip(facts, log_errors, strict=True))
        ]
        reasons = [room]
        for i, fact in enumerate(facts):
            if count > 1 and cut is None:
                slowdown = numbers.slowdown[k][i]
                reasons.append(sentence(fact.model, slowdown, shares_of(slowdown - 1, parts[i], fact.job)))
            reasons.extend(fact.doubts)
        never = [*together, *_alone(facts)]
        reasons.extend([*never, *_not_enforced(device, colocation_set)])
        if count > 1 and cut is None and self.table.is_processor_shared(rows[:count]):
            reasons.append(
                "slowdowns follow from processor sharing, i.e. how long each job keeps the device busy alone"
            )
        total = numbers.together[k]
        return Prediction(
            device=colocation_set.device,
            sharing=colocation_set.sharing,
            model_version=version,
            members=tuple(members),
            total_memory_bytes=Quantity(total, total**2 / upper, upper),
            total_utilization_ratio=within_shares(
                _ratio(numbers.busy[k], self.fitted.intervals.utilization_error), members
            ),
            fits=fits,
            reasons=tuple(reasons),
            never_measured=tuple(never),
        )

    def _member(self, numbers: _Numbers, k: int, i: int, fact: _Facts, log_error: float) -> MemberPrediction:
        """Member `i` of set `k`, given the 90 % bound of its slowdown's error."""
        slowdown, factor = numbers.slowdown[k][i], math.exp(log_error)
        slow = Quantity(slowdown, max(1.0, slowdown / factor), slowdown * factor)
        solo = Quantity.around(numbers.solo[k][i], math.exp(fact.solo_error)).at_least(fact.least_s)
        step = Quantity.around(solo.value * slowdown, math.exp(math.hypot(log_error, fact.solo_error)))
        return MemberPrediction(
            job=fact.spec,
            solo_step_time_s=solo,
            step_time_s=step.at_least(solo.lower),
            slowdown=slow,
            throughput_ratio=slow.inverse(),
            memory_bytes=fact.memory(numbers.memory[k][i]),
            utilization_ratio=_ratio(numbers.utilization[k][i], self.fitted.intervals.utilization_error),
            in_domain=fact.in_domain,
        )

    def never_measured(self, sets: Sequence[ColocationSet], rows: Integers) -> list[list[str]]:
        """What was never measured of each set, in words, without predicting it.

        Args:
            sets: [S] the queried sets.
            rows: [S, M] as in `describe`.
        """
        result = []
        for colocation_set, row in zip(sets, rows.tolist(), strict=True):
            facts = self._facts_of(colocation_set, row)
            result.append([*self._together(colocation_set, facts), *_alone(facts)])
        return result

    def _together(self, colocation_set: ColocationSet, facts: Sequence[_Facts]) -> list[str]:
        """What was never measured under co-location."""
        return self.fitted.manifest.coverage.never_measured(
            colocation_set.device, colocation_set.sharing, [fact.job.workload for fact in facts]
        )

    def _facts_of(self, colocation_set: ColocationSet, rows: Sequence[int]) -> list[_Facts]:
        return [
            self._of(row, w, colocation_set.device)
            for row, w in zip(rows, colocation_set.workloads, strict=False)
        ]

    def _of(self, row: int, workload: Workload, device: str) -> _Facts:
        known = self._facts.get(row)
        if known is not None:
            return known
        fitted, embedding = self.fitted, self.table.embedding[row]
        job = fitted.model.featurizer.job(workload, device)
        graph_error, solo_memory_error = fitted.heads.memory_log_error
        measured_bytes, room_bytes = workload.solo.memory_bytes, job.device.memory_bytes
        in_domain = fitted.domain.contains(embedding)
        doubts = (_far_off(workload, job), _too_little(workload, job), "" if in_domain else _unlike(workload))
        facts = self._facts[row] = _Facts(
            spec=str(workload),
            model=workload.model,
            job=job,
            measured=workload.solo.step_time_s is not None,
            in_domain=in_domain,
            unmeasured=self._unmeasured(workload, job),
            doubts=tuple(filter(None, doubts)),
            solo_error=self._solo_error(workload, job),
            least_s=BOOSTED * job.cost.floor_s if workload.solo.step_time_s is None else 0.0,
            memory_error=graph_error if measured_bytes is None else solo_memory_error,
            # A job that was measured alone had enough with what there is.
            memory_most_bytes=room_bytes if (measured_bytes or math.inf) <= room_bytes else math.inf,
            state_bytes=job.demand.state_bytes,
        )
        return facts

    def _unmeasured(self, workload: Workload, job: JobOnDevice) -> str:
        if workload.solo.step_time_s is not None:
            return ""
        cost_model: CostModel = self.fitted.model.featurizer.cost_model
        return cost_model.never_measured(job.device.name, job.workload.precision)

    def _solo_error(self, workload: Workload, job: JobOnDevice) -> float:
        """Error of a solo step time, measured or predicted.

        If the host feeds a job, its loader may take any time, as in the measured co-location campaigns. If
        data are resident on the device, the error is that of the cost model on networks it was not fitted to.
        That of a GPU type that it was not fitted to comes on top, and for resident data that of a precision; that of
        a precision that was measured on no type always does. A processor counts as such a type, because `cpu` is a core
        of any.
        """
        if workload.solo.step_time_s is not None:
            return 0.03
        cost_model = self.fitted.model.featurizer.cost_model
        known: dict[str, float] = cost_model.card.get("log_error_90", {})
        off = self.fitted.intervals.solo_log_error
        resident = workload.data_on_device
        if resident:
            off = min(off, known.get("on_device", off))
        precision = job.workload.precision
        is_new = precision in PREDICTED_PRECISIONS
        measured_in = precision if resident and not is_new else ""
        is_known = not job.device.is_cpu and cost_model.has_measured(job.device.name, measured_in)
        return math.hypot(off, *[NEW_DEVICE_LOG_ERROR] * (is_new + (not is_known)))


def _not_enforced(device: DeviceSpec, colocation_set: ColocationSet) -> list[str]:
    """What the sharing mode or the device does not enforce, in words."""
    has_shares = any(w.sm_share_ratio < 1 for w in colocation_set.workloads)
    if colocation_set.sharing != "mps":
        return ["sm_share_ratio is taken as enforced, which only MPS does (sharing: mps)"] * has_shares
    if not device.has_mps:
        return [f"{device.name} has no MPS; this is an estimate for processes that run at the same time"]
    if not device.has_mps_shares and has_shares:
        return [
            f"MPS enforces no sm_share_ratio on {device.name}, only from Volta on; it is taken as enforced"
        ]
    return []


def _far_off(workload: Workload, job: JobOnDevice) -> str:
    step_s, least_s, predicted_s = workload.solo.step_time_s, job.cost.floor_s, job.cost.step_time_s
    if step_s is None:
        return ""
    if step_s > MOST_OFF * predicted_s:
        return (
            f"{workload.model}: its measured step time ({step_s:.3g} s) is {step_s / predicted_s:,.0f} times the "
            f"{predicted_s:.3g} s predicted without it; check that it is in seconds per step"
        )
    if step_s >= BOOSTED * least_s:
        return ""
    return (
        f"{workload.model}: its measured step time ({step_s:.3g} s) is shorter than at the peak rates of "
        f"{job.device.name} in {job.workload.precision} ({least_s:.3g} s); check its unit, precision and batch size"
    )


def _too_little(workload: Workload, job: JobOnDevice) -> str:
    measured_bytes, least_bytes = workload.solo.memory_bytes, job.demand.state_bytes
    if measured_bytes is None or measured_bytes >= least_bytes:
        return ""
    return (
        f"{workload.model}: its measured memory ({measured_bytes:.3g} bytes) is less than its parameters, gradients "
        f"and optimiser state ({least_bytes:.3g} bytes); check its unit, precision and optimiser"
    )


def _unlike(workload: Workload) -> str:
    return f"{workload.model} is unlike the models in the training data; its interval may be too narrow"


def _cut_in_words(cut: Cut, facts: Sequence[_Facts]) -> str:
    alone = ", ".join(f"{fact.model} on {name}" for fact, name in zip(facts, cut.slices, strict=True))
    fits = (
        "fits"
        if cut.fits
        else "does not fit: no partition has room for each job in a slice of its own; the largest is"
    )
    return f"{fits} MIG {cut.partition}, each job alone on a slice: {alone}"


def _alone(facts: Sequence[_Facts]) -> list[str]:
    """What was never measured of the jobs alone, each once."""
    return list(dict.fromkeys(fact.unmeasured for fact in facts if fact.unmeasured))


def room_in_words(fits: bool, upper_bytes: float, device: DeviceSpec) -> str:
    """Whether a set fits, with the upper bound of its memory."""
    kind = "main memory" if device.is_cpu else "device memory"
    return (
        f"{'fits' if fits else 'does not fit'}: at most {upper_bytes / 2**30:.2f} GiB of "
        f"{device.memory_bytes / 2**30:.2f} GiB {kind}"
    )


def _ratio(value: float, error: float) -> Quantity:
    return Quantity(value, max(0.0, value - error), min(1.0, value + error))
