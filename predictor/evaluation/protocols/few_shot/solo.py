"""Solo step times after some measurements of the same job, on other devices or at other batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.optimize import minimize

from models.features import Floats
from predictor.evaluation.metrics import score
from predictor.examples.examples import Integers
from predictor.examples.featurizer import Featurizer, shared_featurizer
from predictor.gaussian_process.expectation import Expectation
from predictor.gaussian_process.kernel import KernelParameters, Members, solo_covariance
from predictor.gaussian_process.known_members import Numbers
from predictor.gaussian_process.members import MEMBER_WIDTH, MemberScale, member_features
from predictor.learning.evidence.solo_errors import SoloErrors
from predictor.types import LEVEL_90
from profiling.collections.networks import one_name
from profiling.errors import CotenantError, InputError
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

NAME = "solo-few-shot"
ABOUT = "a job of a model never seen, its step time alone measured on some devices or at some batch sizes, predicted on the others"
CAMPAIGNS = ("gavel-2019", "gavel-2020", "lucid")
COUNTS = (0, 1, 2)
TARGET = "solo_step_time_s"
SEEDS = (0, 1, 2)
AXES = ("other-devices", "other-batch-sizes")
LEARNERS = ("process", "uncorrected", "factor-per-job", "proportional")
_FITTED = ("solo_job", "solo_like", "solo_model", "across_devices", "length_job", "noise")
# Prior standard deviation of the log of fitted parameters, around the default ones.
_DEVIATION = 1.0


@dataclass(frozen=True)
class SoloPoints:
    """N measured solo step times.

    Attributes:
        workloads, devices, campaigns, architectures: [N].
        log_step_s, log_expected_s: [N] measured, and by the cost model.
        features: [N, MEMBER_WIDTH] without measurements.
    """

    workloads: tuple[Workload, ...]
    devices: tuple[str, ...]
    campaigns: tuple[str, ...]
    architectures: tuple[str, ...]
    log_step_s: Floats
    log_expected_s: Floats
    features: Floats

    @classmethod
    def of(cls, solo: pd.DataFrame, featurizer: Featurizer) -> SoloPoints:
        """From the tidy table; jobs with unknown graphs are skipped.

        Raises:
            InputError: the table lacks the campaigns.
        """
        frame = solo[solo.campaign.isin(CAMPAIGNS) & (solo.gpus == 1) & (solo.step_time_s > 0)]
        rows = []
        for row in frame.to_dict("records"):
            workload = Workload.parse(row["workload"]).without_solo()
            try:
                expected_s = featurizer.job(workload, row["device"]).demand.step_s
            except CotenantError:
                continue
            features = member_features(workload, row["device"], expected_s, featurizer)
            known = workload, row["device"], row["campaign"], workload.model
            rows.append((*known, np.log(row["step_time_s"]), np.log(expected_s), features))
        if not rows:
            raise InputError("the data lack the campaigns", expected=" or ".join(CAMPAIGNS), got="none")
        workloads, devices, campaigns, architectures, log_step, log_expected, inputs = zip(*rows, strict=True)
        return cls(
            workloads,
            devices,
            campaigns,
            architectures,
            np.array(log_step),
            np.array(log_expected),
            np.stack(inputs),
        )

    def __len__(self) -> int:
        return len(self.workloads)

    def members(self) -> Members:
        """The points as members of sets, without partners."""
        models, jobs, settings = Numbers(), Numbers(), Numbers()
        columns = np.array(
            [
                (models[w.model], jobs[w], settings[d, c])
                for w, d, c in zip(self.workloads, self.devices, self.campaigns, strict=True)
            ]
        ).T
        return Members(np.zeros((len(self), MEMBER_WIDTH)), *columns)

    def groups(self, axis: str, among: Integers) -> list[Integers]:
        """Groups of at least two points that differ only in `axis`, the device or the batch size.

        They are given as numbers from `among`.
        """
        groups: dict[Any, list[int]] = {}
        for number in among.tolist():
            workload, campaign = self.workloads[number], self.campaigns[number]
            other_device = axis == AXES[0]
            key = (workload, None) if other_device else (replace(workload, batch_size=None), self.devices[number])  # fmt: skip
            groups.setdefault((campaign, key), []).append(number)
        return [np.array(group) for group in groups.values() if len(group) > 1]


class SoloProcess:
    """The errors of solo step times of `predictor.learning`.

    They are centred on the median of each device and campaign, because a few jobs wait for their data loader
    many times longer than they compute.

    Args:
        points: all points.
        train: numbers of those that it may see; its parameters are fitted to their errors.
    """

    def __init__(self, points: SoloPoints, train: Integers) -> None:
        error = points.log_step_s - points.log_expected_s
        members = points.members()
        self.centre = np.full(len(points), float(np.median(error[train])))
        for setting in np.unique(members.setting):
            here = members.setting == setting
            seen = train[here[train]]
            if len(seen):
                self.centre[here] = np.median(error[seen])
        self.target = error - self.centre
        scale = MemberScale.fit(points.features[train])
        self.parameters = p = _fit(points.features, scale, members, train, self.target[train])
        self.members = replace(members, place=scale.place(points.features, p))
        noise = np.full(len(train), p.noise)
        self.errors = SoloErrors(p, self.members.take(train), self.target[train], noise)

    def expectation(self, asked: Integers) -> Expectation:
        """Expectation of the errors of the points `asked` before any of them was observed."""
        return Expectation(*self.errors.joint(self.members.take(asked)))


def _fit(
    features: Floats, scale: MemberScale, members: Members, train: Integers, target: Floats
) -> KernelParameters:
    start = KernelParameters()
    begin = np.log([getattr(start, name) for name in _FITTED])
    members, features = members.take(train), features[train]

    def parameters_at(values: Floats) -> KernelParameters:
        fitted = dict(zip(_FITTED, np.exp(values).tolist(), strict=True))
        return replace(start, **{**fitted, "across_devices": min(fitted["across_devices"], 0.99)})

    def loss(values: Floats) -> float:
        p = parameters_at(values)
        placed = replace(members, place=scale.place(features, p))
        gram = solo_covariance(p, placed, placed)
        gram[np.diag_indices_from(gram)] += p.noise + 1e-8
        try:
            factor = cholesky(gram, lower=True, check_finite=False)
        except LinAlgError:
            return 1e10
        error = solve_triangular(factor, target, lower=True, check_finite=False)
        fit = 0.5 * float(error @ error) + float(np.log(np.diag(factor)).sum())
        return fit + 0.5 * float((((values - begin) / _DEVIATION) ** 2).sum())

    bounds = list(zip(begin - 3 * _DEVIATION, begin + 3 * _DEVIATION, strict=True))
    solution = minimize(loss, begin, method="L-BFGS-B", bounds=bounds, options={"maxiter": 8, "eps": 1e-4})
    return parameters_at(solution.x)


@dataclass(frozen=True, slots=True)
class _Answer:
    """[R] log step times and, if available, the ends of 90 % intervals."""

    middle: Floats
    lower: Floats | None = None
    upper: Floats | None = None


class _Ratios:
    """Log ratio of step times at two points of the same job, by rules of thumb.

    Step time is proportional to the batch size; between devices, it changes by the median ratio of the
    training jobs.
    """

    def __init__(self, points: SoloPoints, train: Integers) -> None:
        self.points = points
        self.steps: dict[tuple[str, str], dict[Workload, float]] = {}
        for number in train.tolist():
            setting = points.campaigns[number], points.devices[number]
            self.steps.setdefault(setting, {})[points.workloads[number]] = float(points.log_step_s[number])
        self.known: dict[tuple[str, str, str], float] = {}

    def between(self, seen: int, asked: int) -> float:
        points, (a, b) = self.points, (self.points.devices[seen], self.points.devices[asked])
        if a == b:
            sizes = [points.workloads[number].batch_size or 1 for number in (asked, seen)]
            return float(np.log(sizes[0] / sizes[1]))
        key = points.campaigns[asked], a, b
        if key not in self.known:
            first, second = self.steps.get(key[:2], {}), self.steps.get((key[0], b), {})
            apart = [second[w] - first[w] for w in first if w in second]
            self.known[key] = float(np.median(apart)) if apart else 0.0
        return self.known[key]


def _answers(
    points: SoloPoints, process: SoloProcess, ratios: _Ratios, told: Expectation, group: Integers, count: int
) -> Iterator[tuple[str, _Answer]]:
    """Answers of all learners for the points of a group after the first `count`, which are observed.

    `told` is the expectation of the group without observations.
    """
    seen, asked = group[:count], group[count:]
    expected = points.log_expected_s
    error = points.log_step_s[seen] - expected[seen]
    p, first = process.parameters, np.arange(count)
    if count:
        told = told.observe(first, process.target[seen], np.full(count, p.noise))
    middle = expected[asked] + process.centre[asked] + told.mean[count:]
    half = LEVEL_90 * np.sqrt(np.maximum(np.diag(told.covariance)[count:], 0.0) + p.noise)
    yield "process", _Answer(middle, middle - half, middle + half)
    yield "uncorrected", _Answer(expected[asked])
    yield "factor-per-job", _Answer(expected[asked] + (error.mean() if count else 0.0))
    if count:
        apart = [[ratios.between(known, other) for known in seen.tolist()] for other in asked.tolist()]
        yield "proportional", _Answer((points.log_step_s[seen] + np.array(apart)).mean(1))


def run(
    points: SoloPoints,
    counts: Sequence[int] = COUNTS,
    seeds: Sequence[int] = SEEDS,
    done: Callable[[str], None] = lambda _n: None,
) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Learner -> axis -> count -> metrics of the step time, with each architecture held out in turn."""
    parts: dict[tuple[str, str, int], list[tuple[Integers, _Answer]]] = {}
    same = one_name(points.architectures)
    architectures = np.array([same[name] for name in points.architectures])
    for architecture in sorted(set(same.values())):
        train, test = (
            np.flatnonzero(side) for side in (architectures != architecture, architectures == architecture)
        )
        groups = {axis: points.groups(axis, test) for axis in AXES}
        if not any(groups.values()) or not len(train):
            continue
        for key, asked, answer in _held_out(points, train, test, groups, counts, seeds):
            parts.setdefault(key, []).append((asked, answer))
        done(architecture)
    figures: dict[str, Any] = {}
    for (name, axis, count), some in sorted(parts.items(), key=lambda item: LEARNERS.index(item[0][0])):
        measured = np.exp(np.concatenate([points.log_step_s[rows] for rows, _ in some]))
        ends = {
            end.name: np.exp(np.concatenate([getattr(answer, end.name) for _, answer in some]))
            for end in fields(_Answer)
            if getattr(some[0][1], end.name) is not None
        }
        figures.setdefault(name, {}).setdefault(axis, {})[str(count)] = score(
            measured, ends["middle"], ends.get("lower"), ends.get("upper")
        )
    return figures


def _held_out(
    points: SoloPoints,
    train: Integers,
    test: Integers,
    groups: dict[str, list[Integers]],
    counts: Sequence[int],
    seeds: Sequence[int],
) -> Iterator[tuple[tuple[str, str, int], Integers, _Answer]]:
    """(learner, axis, count), points asked and the answer, for the groups of one architecture in random orders."""
    process, ratios = SoloProcess(points, train), _Ratios(points, train)
    start = process.expectation(test)
    for axis, several in groups.items():
        for seed in seeds:
            rng = np.random.default_rng(seed)
            for order in map(rng.permutation, several):
                at = np.searchsorted(test, order)
                told = Expectation(start.mean[at], start.covariance[np.ix_(at, at)])
                for count in (c for c in counts if c < len(order)):
                    for name, answer in _answers(points, process, ratios, told, order, count):
                        yield (name, axis, count), order[count:], answer


def report(tables: dict[str, Any], command: str, done: Callable[[str], None] = lambda _n: None) -> dict[str, Any]:  # fmt: skip
    """Run the protocol; returns everything needed to read the figures and to reproduce them.

    Raises:
        InputError: the tables lack the campaigns.
    """
    from profiling.measure.environment import provenance

    if "solo" not in tables:
        raise InputError("the data lack a solo table", hint="cotenant data import")
    points = SoloPoints.of(tables["solo"], shared_featurizer())
    return {
        "protocol": NAME,
        "about": ABOUT,
        **provenance(command),
        "target": TARGET,
        "points": len(points),
        "counts": list(COUNTS),
        "seeds": list(SEEDS),
        "learners": run(points, done=done),
    }
