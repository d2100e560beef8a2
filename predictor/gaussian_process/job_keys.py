"""Jobs of members as single numbers, and their places among sorted ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.gaussian_process.kernel import Members

if TYPE_CHECKING:
    from predictor.examples.examples import Integers

JOBS = 2**32
"""More than there are numbers of jobs."""


def keys_of(members: Members, own: Integers) -> Integers:
    """[R] the setting and job of each member as one number, setting * `JOBS` + job."""
    return members.setting[own] * JOBS + members.job[own]


def jobs_on_devices(members: Members, numbers: Integers) -> Integers:
    """[R] the device and job of each member as one number, whatever the sharing mode."""
    return members.device[numbers] * JOBS + members.job[numbers]


def unlimited_on_devices(members: Members, numbers: Integers) -> Integers:
    """[R] the same, whatever share of the multiprocessors it may use, which changes nothing about its memory."""
    return members.device[numbers] * JOBS + members.unlimited[numbers]


def unfrozen_on_devices(members: Members) -> Integers:
    """[V] the same, whatever is frozen."""
    return members.device * JOBS + members.unfrozen


def places_among(keys: NDArray[Any], wanted: NDArray[Any]) -> Integers:
    """Place of each of `wanted`, of any shape, among `keys` [N], ascending; -1 where it is none of them."""
    if not len(keys):
        return np.full(wanted.shape, -1)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, place, -1)
