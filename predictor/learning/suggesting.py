"""Suggests which partner to run a job beside, in order to learn most about how it shares the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from models.features import Floats
from predictor.learning.link import slope
from predictor.learning.probes import Expectation
from profiling.devices import canonical
from profiling.devices.mig import check_slices
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload

if TYPE_CHECKING:
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
        jobs: SPECs of the job and its partner.
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
    """

    device: str
    sharing: str
    error_ratio: float
    probes: tuple[Probe, ...]

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `cotenant probe --json` and `POST /v1/probes`."""
        return {
            **asdict(self),
            "probes": [{"jobs": list(probe.jobs), "error_ratio": probe.error_ratio} for probe in self.probes],
        }


def suggest_probes(
    posterior: Posterior,
    device: str,
    job: Workload,
    partners: Sequence[Workload],
    count: int = 1,
    sharing: str = "time-slice",
) -> ProbePlan:
    """Choose partners greedily by how much running `job` beside them reduces the variance of all step times.

    Args:
        posterior: what is known so far; it needs no observations.
        device, sharing: where the job is to run.
        job: the job.
        partners: candidates; those that do not fit beside the job are left out. One that is listed twice is
            expected to be queried twice as often, so it counts twice.
        count: number of probes.

    Raises:
        InputError: no candidates, none that fits, `count` below 1, or the device has no MIG slices for two jobs.
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
    if not any(fits):
        raise InputError(
            f"{job.model} fits beside none of the candidates",
            expected=f"a job or partners that need less of the memory of {device}",
            got=", ".join(map(str, candidates)),
        )
    sets = list(compress(sets, fits))
    candidates = list(compress(candidates, fits))
    rows, log_slowdown = posterior.rows_of(sets)
    parameters = posterior.config.parameters
    process = posterior.process
    expected = Expectation(*process.joint(posterior.members, rows))
    # Weigh variances in log step time: the error on the scale divided by its slope.
    steep = slope(log_slowdown, parameters.knee)
    noise = parameters.noise * steep**2
    named = Counter(partners)
    times = np.array([named[candidate] for candidate in candidates])
    weights = np.repeat(times, 2) / steep**2 / (2.0 * times.sum())
    before = _error(expected, weights)
    probes: list[Probe] = []
    left = list(range(len(candidates)))
    while left and len(probes) < count:
        number, _ = expected.best([np.array([2 * k, 2 * k + 1]) for k in left], noise, weights)
        chosen = left.pop(number)
        pair = np.array([2 * chosen, 2 * chosen + 1])
        # The observed value does not affect the remaining variance.
        expected = expected.observe(pair, expected.mean[pair], noise[pair])
        probes.append(Probe((str(job), str(candidates[chosen])), _error(expected, weights)))
    return ProbePlan(device, sharing, before, tuple(probes))


def _error(expected: Expectation, weights: Floats) -> float:
    return float(_ABSOLUTE * np.sqrt(max(float(np.diag(expected.covariance) @ weights), 0.0)))
