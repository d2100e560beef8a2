"""A job's step on a MIG slice from its run on the whole card.

The model estimates how many multiprocessors and how much bandwidth the job can use.
"""

from __future__ import annotations

import numpy as np

from datasets.bundle import Bundle, Floats
from predictor.evaluation.protocols.published.steps import TARGETS, whole_step_s
from predictor.evaluation.protocols.registry import Contender, register
from profiling.devices import get_device

# Features that indicate how many multiprocessors a job can fill: power (log), and the share of time in which
# a kernel ran.
_PROFILE = ("whole_power_w", "whole_utilization_ratio")
# Ridge penalty on the profile's weights, and the log error beyond which the loss becomes linear.
_RIDGE, _TOLERANCE = 0.05, 0.1


class SliceDemand:
    """Step on a slice over that on the whole card: ((1 + (d/s)^p + (b/m)^p) / (1 + d^p + b^p))^(1/p).

    s and m are the slice's shares of multiprocessors and memory bandwidth. d and b are the job's demands for
    them, relative to the part of a step that does not depend on the slice (the host, waiting for data): d is
    log-linear in the profile on the whole card, b proportional to the bandwidth measured there. p controls
    how far the three overlap.
    """

    def fit(self, train: Bundle, seed: int = 0) -> SliceDemand:  # noqa: ARG002
        """Learn p and the weights of profile and bandwidth by least squares on logs; `seed` is not used.

        Raises:
            InputError: no measured points.
        """
        from scipy.optimize import least_squares

        points = train.learned_points()
        profile = _profile(train)[points]
        self.middle_, self.spread_ = profile.mean(axis=0), profile.std(axis=0) + 1e-9
        target = np.log(train.y[points] / whole_step_s(train)[points])
        inputs = [values[points] for values in _inputs(train)]
        profile = (profile - self.middle_) / self.spread_

        def errors(weights: Floats) -> Floats:
            return np.concatenate(
                [_log_ratio(weights, profile, *inputs) - target, np.sqrt(_RIDGE) * weights[3:]]
            )

        start = np.concatenate([[0.5, 0.0, -1.0], np.zeros(profile.shape[1])])
        self.weights_ = least_squares(errors, start, loss="soft_l1", f_scale=_TOLERANCE).x
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds for `test.rows`."""
        profile = (_profile(test) - self.middle_) / self.spread_
        return whole_step_s(test) * np.exp(_log_ratio(self.weights_, profile, *_inputs(test)))


def _log_ratio(weights: Floats, profile: Floats, bandwidth: Floats, cores: Floats, memory: Floats) -> Floats:
    """[n] log ratio of the step on slices with shares `cores` and `memory` to that on the whole card.

    Args:
        weights: overlap, level of d, weight of b, weights of the profile.
        profile: [n, F] standardised.
        bandwidth: [n] ratio measured on the whole card.
        cores, memory: [n] shares of a slice.
    """
    power = np.exp(weights[0]) + 0.5
    demand, traffic = np.exp(weights[1] + profile @ weights[3:]), np.exp(weights[2]) * bandwidth
    on_slice = 1 + (demand / cores) ** power + (traffic / memory) ** power
    return np.asarray(np.log(on_slice / (1 + demand**power + traffic**power)) / power)


def _profile(bundle: Bundle) -> Floats:
    power, utilization = (bundle.rows[name].to_numpy(dtype=np.float64) for name in _PROFILE)
    return np.column_stack([np.log(power), utilization])


def _inputs(bundle: Bundle) -> tuple[Floats, Floats, Floats]:
    """[n] each: bandwidth ratio on the whole card, the slice's shares of multiprocessors and of bandwidth."""
    rows = bundle.rows
    shares = np.array([slice_shares(name) for name in rows["device"]])
    return rows["whole_memory_bandwidth_ratio"].to_numpy(dtype=np.float64), shares[:, 0], shares[:, 1]


def slice_shares(name: str) -> tuple[float, float]:
    """A slice's multiprocessors and memory bandwidth relative to the largest slice's.

    Raises:
        UnknownNameError: no such device.
    """
    card = name.partition(":")[0]
    part, largest = get_device(name), get_device(f"{card}:mig=7g")
    return (
        part.sm_count / largest.sm_count,
        part.memory_bandwidth_bytes_per_s / largest.memory_bandwidth_bytes_per_s,
    )


register(
    Contender(
        "slice-demand",
        SliceDemand,
        targets=TARGETS,
        protocols=frozenset({"miso-slices-by-model"}),
        seconds_per_fold=1,
    )
)
