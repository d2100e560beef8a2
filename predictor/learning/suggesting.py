"""Suggests whether to run a job alone or beside which partner, to learn most about how it shares the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.answering.never_measured import never_measured
from predictor.gaussian_process.expectation import Expectation
from predictor.learning.expected_steps import ExpectedSteps
from profiling.devices import canonical
from profiling.devices.mig import check_slices
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.learning.posterior import Posterior

# Partners used if no running jobs are given: a convolutional network with large kernels and one with small
# ones, a recurrent network and a transformer.
STANDARD_PARTNERS = ("resnet50-imagenet", "resnet18-cifar", "lstm-wikitext2", "transformer-multi30k")
# Mean absolute deviation of a normal distribution over its standard deviation.
_ABSOLUTE = float(np.sqrt(2 / np.pi))


@dataclass(frozen=True, slots=True)
class Probe:
    """A set worth running.

    Attributes:
        jobs: SPECs of the job and its partner; of the job only, if it is to run alone.
        error_ratio: expected relative error of the step times of the job and its partners once this probe and
            the ones before it have been observed.
    """

    jobs: tuple[str, ...]
    error_ratio: float


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """Probes, the most informative first.

    Attributes:
        device, sharing: where to run them.
        error_ratio: expected error before any of them.
        probes: at most as many as requested.
        reasons: why there are fewer, if so.
        never_measured: what was never measured of the job beside its partners, in words.
    """

    device: str
    sharing: str
    error_ratio: float
    probes: tuple[Probe, ...]
    reasons: tuple[str, ...] = ()
    never_measured: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `cotenant probe --json` and `POST /v1/probes`."""
        return asdict(self)


def suggest_probes(
    posterior: Posterior,
    device: str,
    job: Workload,
    partners: Sequence[Workload],
    count: int = 1,
    sharing: str = "time-slice",
) -> ProbePlan:
    """Choose runs greedily by how much they reduce the variance of the step times of `job` and its partners.

    The job alone is one of the candidates, unless its solo step time was stated or observed.

    Args:
        posterior: what is known so far; it needs no observations.
        device, sharing: where the job is to run.
        job: the job.
        partners: candidates; those that do not fit beside the job are left out, and if none fits, the job can only
            run alone. One that is listed twice is expected to be queried twice as often, so it counts twice.
        count: number of probes.

    Raises:
        InputError: no candidates, `count` below 1, the job does not fit even alone, or the device has no MIG slices
            for two jobs.
        UnknownNameError: unknown model or device.
    """
    candidates = list(dict.fromkeys(partners))
    if not candidates or count < 1:
        raise InputError(
            "nothing to probe", expected="at least one partner and one probe",
            got=f"{len(candidates)} partners, {count} probes",
        )  # fmt: skip
    device = canonical(device)
    if sharing == "mig":
        check_slices(device, 2)
    sets = [ColocationSet(device, (job, partner), sharing) for partner in candidates]
    fits = posterior.predict_arrays(sets).fits.tolist()
    sets = list(compress(sets, fits))
    candidates = list(compress(candidates, fits))
    if sets:
        steps = ExpectedSteps.of(posterior, sets)
        named = Counter(partners)
        times = np.array([named[candidate] for candidate in candidates])
        weights = np.zeros(len(steps.noise))
        weights[: 2 * len(sets)] = np.repeat(times, 2) / (2.0 * times.sum())
    else:
        alone = _alone(posterior, device, job, sharing)
        steps, weights = ExpectedSteps.of_one(posterior, alone), np.ones(1)
    expected, noise = steps.errors, steps.noise
    before = _error(expected, weights)
    never = never_measured(posterior, sets or [alone])
    left: list[tuple[tuple[str, ...], Integers]] = [
        ((str(job), str(candidate)), np.array([2 * k, 2 * k + 1])) for k, candidate in enumerate(candidates)
    ]
    if len(steps.alone):
        left.append(((str(job),), steps.alone))
    reasons = _fewer(count, len(left), len(fits) - len(sets))
    if not sets:
        known = "can be run alone" if left else "has a step time alone already, so no run is suggested"
        reasons = (f"no partner fits beside {job.model}, which {known}", *reasons)
    probes: list[Probe] = []
    while left and len(probes) < count:
        number = expected.best([rows for _, rows in left], noise, weights)
        jobs, rows = left.pop(number)
        # The observed value does not affect the remaining variance.
        expected = expected.observe(rows, expected.mean[rows], noise[rows])
        probes.append(Probe(jobs, _error(expected, weights)))
    return ProbePlan(device, sharing, before, tuple(probes), reasons, tuple(never))


def _alone(posterior: Posterior, device: str, job: Workload, sharing: str) -> ColocationSet:
    """The job as a set of one. Raises `InputError` if that does not fit."""
    alone = ColocationSet(device, (job,), sharing)
    if not posterior.predict_arrays([alone]).fits[0]:
        raise InputError(
            f"{job} does not fit on {device}, even alone",
            expected=f"a job that needs less of the memory of {device}",
        )
    return alone


def _fewer(count: int, candidates: int, too_large: int) -> tuple[str, ...]:
    """Why there are fewer probes than asked for."""
    if count <= candidates:
        return ()
    there = {0: "is none", 1: "is only one candidate"}.get(candidates, f"are only {candidates} candidates")
    partners = "partner does" if too_large == 1 else "partners do"
    rest = f"; {too_large} {partners} not fit beside the job" if too_large else ""
    asked = "1 probe was" if count == 1 else f"{count} probes were"
    return (f"{asked} asked for, but there {there}{rest}",)


def _error(expected: Expectation, weights: Floats) -> float:
    return float(_ABSOLUTE * np.sqrt(max(float(np.diag(expected.covariance) @ weights), 0.0)))
