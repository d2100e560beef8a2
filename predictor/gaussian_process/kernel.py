"""Similarity of members of co-location sets: the covariance of their prediction errors.

A member i beside partner j in setting s (device, sharing mode and campaign) and another pair (i', j', s')
have the covariance

    c(s, s') [ both k1(i,i') k1(j,j') + job k2(i,i') + partner k2(j,j')
               + job_model_beside A(i,i') k1(j,j') + beside_partner_model k1(i,i') A(j,j')
               + models A(i,i') A(j,j') k2(i,i') k2(j,j')
               + job_model A(i,i') k2(i,i') + partner_model A(j,j') k2(j,j') ]
    + [s = s'] ( same_job J(i,i') + same_partner J(j,j') ) + everywhere

k1 and k2 are squared exponentials (Rasmussen and Williams 2006, section 4.2) with two length scales on a
member's features, A is 1 for the same architecture, J for the same job, and c is 1 in the same setting, else
`across_devices`. Sets of more than two take the mean over partners (an additive process, Duvenaud et al.,
NeurIPS 2011), weighted by how busy they keep the device: one that does next to nothing says next to nothing.
A job alone runs the same in every sharing mode, so its solo step time depends on the device only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


@dataclass(frozen=True, slots=True)
class KernelParameters:
    """Variances of the kernel's terms and its length scales.

    Variances are on the scale of `predictor.gaussian_process.link`; those of solo terms are of a log step time. The
    defaults, round figures, are for slowdowns around a constant.

    Attributes:
        both to everywhere: see the module docstring.
        length_both, length_job: length scales of k1 and k2.
        across_devices: fraction of the covariance that carries over to another setting or, for solo terms, to
            another device.
        weight_solo, weight_pace, weight_want, weight_graph: weights of the feature groups in `MEMBER_GROUPS`
            in squared distances.
        solo_job, solo_like, solo_model: variances of a predicted log solo step time shared with the same job, whatever
            is frozen, with similar jobs, and with similar jobs of the same architecture.
        noise: variance of a repeated measurement of a log step time.
        knee: log slowdown below which the scale is linear.
    """

    both: float = 0.4
    job: float = 0.12
    partner: float = 0.12
    job_model_beside: float = 0.08
    beside_partner_model: float = 0.08
    models: float = 0.08
    job_model: float = 0.08
    partner_model: float = 0.08
    same_job: float = 0.012
    same_partner: float = 0.012
    everywhere: float = 0.08
    length_both: float = 2.5
    length_job: float = 1.5
    across_devices: float = 0.5
    weight_solo: float = 0.6
    weight_pace: float = 0.8
    weight_want: float = 1.5
    weight_graph: float = 0.4
    solo_job: float = 0.05
    solo_like: float = 0.06
    solo_model: float = 0.08
    noise: float = 0.002
    knee: float = 0.1

    def to_json(self) -> dict[str, float]:
        return {f.name: float(getattr(self, f.name)) for f in fields(self)}

    def scaled(self, ratio: float) -> KernelParameters:
        """The same with all variances of slowdowns multiplied by `ratio`; noise and solo terms stay."""
        return replace(self, **{name: ratio * getattr(self, name) for name in _OF_SLOWDOWNS})


_OF_SLOWDOWNS = (
    "both", "job", "partner", "job_model_beside", "beside_partner_model", "models", "job_model",
    "partner_model", "same_job", "same_partner", "everywhere",
)  # fmt: skip


@dataclass
class Members:
    """V members of co-location sets.

    Attributes:
        place: [V, F] standardised features, weighted so that their squared distances are the kernel's.
        model, job, setting: [V] numbers of the architecture, of the job SPEC, and of the device with sharing
            mode and campaign.
        device: [V] numbers of the device alone, for solo step times; defaults to `setting`.
        occupancy: [V] share of the time for which each keeps the device from others, above 0
            (`models.features.occupancy`); defaults to 1.
        unfrozen: [V] numbers of the job SPEC with no frozen layers; defaults to `job`.
        unlimited: [V] numbers of the job SPEC with all multiprocessors (`sm_share_ratio`); defaults to `job`.
    """

    place: Floats
    model: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    job: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    setting: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    device: Integers = None  # type: ignore[assignment]
    occupancy: Floats = None  # type: ignore[assignment]
    unfrozen: Integers = None  # type: ignore[assignment]
    unlimited: Integers = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.device is None:
            self.device = self.setting
        if self.occupancy is None:
            self.occupancy = np.ones(len(self.model))
        if self.unfrozen is None:
            self.unfrozen = self.job
        if self.unlimited is None:
            self.unlimited = self.job

    def __len__(self) -> int:
        return len(self.model)

    def take(self, index: Integers | slice) -> Members:
        return Members(*(getattr(self, f.name)[index] for f in fields(self)))

    def joined(self, others: Members) -> Members:
        return Members(
            *(np.concatenate([getattr(self, f.name), getattr(others, f.name)]) for f in fields(self))
        )


@dataclass(frozen=True, slots=True)
class MemberKernel:
    """The kernel between members in its separate terms, before they are summed over pairs.

    The covariance of (i, j) and (i', j') is
    `job[i,i'] + partner[j,j'] + sum over q of left[q][i,i'] right[q][j,j'] + constant`.

    Attributes:
        job, partner: [V, W] (of all with all).
        left, right: three of [V, W] each.
        constant: covariance that any two pairs share.
    """

    job: Floats
    partner: Floats
    left: tuple[Floats, Floats, Floats]
    right: tuple[Floats, Floats, Floats]
    constant: float

    @classmethod
    def of(cls, parameters: KernelParameters, a: Members, b: Members) -> MemberKernel:
        """Of all members `a` [V] with all members `b` [W]."""
        return cls._of(
            parameters,
            _squared_distance(a, b),
            np.equal.outer(a.setting, b.setting),
            np.equal.outer(a.model, b.model),
            np.equal.outer(a.job, b.job),
        )

    @classmethod
    def within(cls, parameters: KernelParameters, members: Members, groups: Integers) -> MemberKernel:
        """Of the members in each of R groups [R, K] with each other; fields are [R, K, K]."""
        place = members.place[groups]
        length = (place**2).sum(2)
        apart = length[:, :, None] + length[:, None] - 2.0 * (place @ place.transpose(0, 2, 1))
        of_each = (number[groups] for number in (members.setting, members.model, members.job))
        same = (number[:, :, None] == number[:, None] for number in of_each)
        return cls._of(parameters, np.maximum(apart, 0.0), *same)

    @classmethod
    def _of(
        cls, p: KernelParameters, squared_distance: Floats, same: Bools, same_model: Bools, same_job: Bools
    ) -> MemberKernel:
        apart = -0.5 * squared_distance
        k1, k2 = np.exp(apart / p.length_both**2), np.exp(apart / p.length_job**2)
        near = np.where(same, 1.0, p.across_devices)
        model, job = same_model.astype(np.float64), same_job.astype(np.float64)
        like = model * k2
        return cls(
            job=near * (p.job * k2 + p.job_model * like) + same * p.same_job * job,
            partner=near * (p.partner * k2 + p.partner_model * like) + same * p.same_partner * job,
            left=(near * k1, near * model, near * like),
            right=(p.both * k1 + p.beside_partner_model * model, p.job_model_beside * k1, p.models * like),
            constant=p.everywhere,
        )


def solo_covariance(parameters: KernelParameters, a: Members, b: Members) -> Floats:
    """[V, W] prior covariance of errors of predicted log solo step times."""
    p = parameters
    like = np.exp(-0.5 * _squared_distance(a, b) / p.length_job**2)
    near = np.where(np.equal.outer(a.device, b.device), 1.0, p.across_devices)
    same_job, same_model = np.equal.outer(a.unfrozen, b.unfrozen), np.equal.outer(a.model, b.model)
    return np.asarray(near * (p.solo_job * same_job + like * (p.solo_like + p.solo_model * same_model)))


def _squared_distance(a: Members, b: Members) -> Floats:
    apart = (a.place**2).sum(1)[:, None] + (b.place**2).sum(1)[None] - 2.0 * (a.place @ b.place.T)
    return np.maximum(apart, 0.0)


@lru_cache(maxsize=16)
def kernel_of_itself(parameters: KernelParameters) -> MemberKernel:
    """[1, 1] kernel of a member with itself, which is the same for all members."""
    one = np.zeros(1, dtype=np.int64)
    member = Members(np.zeros((1, 0)), one, one, one)
    return MemberKernel.of(parameters, member, member)
