"""A Gaussian process over a predictor's training sets, which answers together with the networks.

A network extrapolates where a process falls back to its mean. On architectures that neither has seen they err
differently, so the geometric mean of the two slowdowns is more accurate than either (docs/training.md). The
networks answer alone outside the process's domain: on a device or in a sharing mode without training sets;
for jobs with measured utilisation if no training set has one; and for sets of three or more, because the
process takes the mean over partners, so that eight copies of a job would be no slower than two (but see
`predictor.answering.pair_corrections`). The kernel is that of `predictor.gaussian_process.kernel` around a constant mean,
with the default parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.covariances import Evidence
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.known_members import ByMember, KnownMembers, MemberKey, NamedMembers, Numbers
from predictor.gaussian_process.link import from_scale, slope, to_scale
from predictor.gaussian_process.measured import MeasuredRows
from predictor.gaussian_process.members import MEMBER_FEATURES, MEMBER_WIDTH, MemberScale
from predictor.gaussian_process.pair_table import PairBlocks, PairWeights
from predictor.gaussian_process.process import Process
from predictor.gaussian_process.rows import Rows
from predictor.types import Bools

if TYPE_CHECKING:
    from predictor.examples.examples import Examples, Integers
    from predictor.examples.featurizer import Featurizer

NETWORK_SHARE = 0.5
"""Weight of the networks in the mean with the process before anything was observed."""
# Size of the sets that the process answers for.
_PAIR = 2
# Above this many training rows, as many inducing rows represent them all.
MOST_ROWS = 1024
# Fewest training rows to which a process is fitted.
ENOUGH = 8
_UTILIZATION = MEMBER_FEATURES.index("utilization_ratio")
# Smallest share of the time assumed to be left to a member, so that bounds stay finite.
_LEAST_LEFT = 1e-6


@dataclass(frozen=True, slots=True)
class _TrainingSets:
    """N members of measured sets to condition on.

    Attributes:
        measured: features and numbers of the V distinct members, and the names behind the numbers.
        settings: those of `measured` without the campaign.
        rows: [N] members beside their partners.
        log_slowdown: [N] measured.
    """

    measured: MeasuredRows
    settings: tuple[tuple[str, str], ...]
    rows: Rows
    log_slowdown: Floats

    @classmethod
    def of(cls, examples: Examples, featurizer: Featurizer) -> _TrainingSets:
        """Keep the pairs whose members were both resident on the device.

        Larger sets are slower than the mean of their pairs, which they would make slower here. Campaigns are not
        distinguished, because queries name none.
        """
        pair = np.bincount(examples.set_index, minlength=len(examples.set_ids)) == _PAIR
        usable = [s for s, keep in zip(examples.set_ids, pair & examples.resident, strict=True) if keep]
        if len(usable) < len(examples.set_ids):
            examples = examples.subset(usable)
        measured = MeasuredRows.of(examples.without_campaign(), featurizer)
        kept = np.flatnonzero(examples.scored & (measured.rows.partners >= 0).any(1))
        settings = tuple((device, sharing) for device, sharing, _ in measured.settings)
        return cls(measured, settings, measured.rows.take(kept), -np.log(examples.ratio[kept]))

    def joined_to(
        self, known: NamedMembers, scale: MemberScale, parameters: KernelParameters
    ) -> NamedMembers:
        """`known` followed by these members, which take the numbers of `known` for names it already has."""
        members = self.measured.members
        models, jobs, settings = map(Numbers, (known.models, known.jobs, known.settings))
        model, job, setting = (
            np.array([numbers[name] for name in names], np.int64)[column]
            for numbers, names, column in (
                (models, self.measured.models, members.model),
                (jobs, self.measured.jobs, members.job),
                (settings, self.settings, members.setting),
            )
        )
        place = scale.place(self.measured.features, parameters)
        # The last column separates jobs whose graphs cannot be read; all of these were read.
        place = np.concatenate([place, np.zeros((len(place), 1))], 1)
        joined = known.members.joined(Members(place, model, job, setting))
        return NamedMembers(joined, tuple(models), tuple(jobs), tuple(settings))  # type: ignore[arg-type]


class SetProcess:
    """The process conditioned on measured sets. It holds their weights, but no measurements.

    Args:
        seen: members of these sets.
        weights: weights of their pairs.
        centre: the constant mean, on the scale of `predictor.gaussian_process.link`.
        scale: scale of member features.
        featurizer: reads the graphs of queried jobs.
    """

    def __init__(
        self,
        seen: NamedMembers,
        weights: PairWeights,
        centre: float,
        scale: MemberScale,
        featurizer: Featurizer,
    ) -> None:
        self.seen, self.weights, self.centre = seen, weights, centre
        self.scale, self.featurizer, self.parameters = scale, featurizer, weights.parameters
        self._known = KnownMembers(self.parameters, scale, featurizer, seen)
        self._out_of_domain = ByMember(self._found_out_of_domain)
        self._slowdowns = PairBlocks(weights, self._slowdown_of, alone=np.nan)

    @classmethod
    def fit(cls, examples: Examples, featurizer: Featurizer) -> SetProcess | None:
        """Fit to measured sets; None if there are fewer than `ENOUGH` rows."""
        sets = _TrainingSets.of(examples, featurizer)
        if len(sets.rows) < ENOUGH:
            return None
        scale = MemberScale.fit(sets.measured.features)
        parameters = KernelParameters()
        centre = float(to_scale(sets.log_slowdown, parameters.knee).mean())
        nobody = Members(np.zeros((0, MEMBER_WIDTH + 1)))
        weights = PairWeights(parameters, nobody, np.zeros((0, 0)), np.zeros(0, np.int64))
        return cls(NamedMembers(nobody), weights, centre, scale, featurizer)._conditioned_on(sets)

    def with_sets(self, examples: Examples) -> SetProcess:
        """Return another process that is conditioned on these sets as well.

        Its prior mean is this process's answer, to which it is held at the pairs that this one was
        conditioned on.
        """
        return self._conditioned_on(_TrainingSets.of(examples, self.featurizer))

    def _conditioned_on(self, sets: _TrainingSets) -> SetProcess:
        count = len(sets.rows)
        if not count:
            return self
        p, start = self.parameters, len(self.seen.members)
        named = sets.joined_to(self.seen, self.scale, p)
        members = named.members
        own, partner = np.nonzero(self.weights.weight)
        held = Rows(own, partner[:, None])
        partners = np.where(sets.rows.partners >= 0, sets.rows.partners + start, -1)
        rows = Rows(sets.rows.own + start, partners).joined(held)
        pairs = rows.pairs(members)
        means = pairs.share * self.weights.table(members, members)[pairs.own, pairs.partner]
        prior = np.asarray(np.bincount(pairs.row, means, minlength=len(rows)) + self.centre, np.float64)
        log_slowdown = np.concatenate([sets.log_slowdown, from_scale(prior[count:], p.knee)])
        evidence = Evidence(
            members,
            rows,
            to_scale(log_slowdown, p.knee) - prior,
            p.noise * slope(log_slowdown, p.knee) ** 2,
            np.random.default_rng(0).permutation(len(rows)),
        )
        change = Process(p, evidence, MOST_ROWS).pair_weights
        weight = np.zeros((len(members), len(members)))
        weight[:start, :start] = self.weights.weight
        weight[np.ix_(change.numbers, change.numbers)] += change.weight
        used = np.flatnonzero(weight.any(0) | weight.any(1))
        members = members.take(used)
        private = (*self.weights.private, *change.private)
        weights = PairWeights(p, members, weight[np.ix_(used, used)], np.arange(len(used)), private)
        return SetProcess(replace(named, members=members), weights, self.centre, self.scale, self.featurizer)

    def _slowdown_of(self, mean: Floats) -> Floats:
        return np.exp(np.maximum(from_scale(mean + self.centre, self.parameters.knee), 0.0))

    def seen_on(self, scale: MemberScale, parameters: KernelParameters) -> NamedMembers:
        """`seen` with places on another scale, for a kernel of other parameters."""
        place, width = self.seen.members.place, MEMBER_WIDTH
        features = self.scale.features(place[:, :width], self.parameters)
        there = np.concatenate([scale.place(features, parameters), place[:, width:]], 1)
        return replace(self.seen, members=replace(self.seen.members, place=there))

    @property
    def members(self) -> Members:
        """Members of the training sets, followed by all that were queried."""
        return self._known.members

    def numbers(self, keys: Sequence[MemberKey], solo_step_time_s: Sequence[float]) -> list[int]:
        """Number each (workload with its solo measurements, device, sharing mode).

        Args:
            keys: members.
            solo_step_time_s: measured or predicted, for each.
        """
        return self._known.numbers(keys, solo_step_time_s)

    def slowdown(self, numbers: Integers, occupied: Floats) -> Floats:
        """[S, M] slowdowns, at least 1; NaN in sets that are not pairs and outside the domain.

        Args:
            numbers: [S, M] of members, -1 where a set has fewer.
            occupied: [S, M] share of the time that the other members occupy in total when alone. A member is
                left at least the rest, which bounds its slowdown.
        """
        if numbers.shape[1] > _PAIR:
            pairs, result = (numbers >= 0).sum(1) == _PAIR, np.full(numbers.shape, np.nan)
            if pairs.any():
                result[pairs] = self._of_pairs(numbers[pairs], occupied[pairs])
            return result
        return self._of_pairs(numbers, occupied)

    def _of_pairs(self, numbers: Integers, occupied: Floats) -> Floats:
        most = 1.0 / np.maximum(1.0 - occupied, _LEAST_LEFT)
        result = np.minimum(self._slowdowns.of_sets(self.members, numbers), most)
        inside = self.covers(numbers) | (numbers < 0)
        if not inside.all():
            result[~inside.all(1)] = np.nan
        return result

    def covers(self, numbers: Integers) -> Bools:
        """Whether members, by number, are in the domain; same shape."""
        return np.asarray(~self._out_of_domain.first(len(self.members))[numbers])

    def _found_out_of_domain(self, numbers: Integers) -> Bools:
        """[R] whether members, by number, are on a device or in a sharing mode that was not seen, or have a utilisation
        where none was seen."""
        out = self.members.setting[numbers] >= len(self.seen.settings)
        if not np.isfinite(self.scale.deviation[_UTILIZATION]):
            out |= self._known.utilization_measured[numbers]
        return np.asarray(out)

    def blended(
        self, excess: Floats, numbers: Integers, occupied: Floats, network_share: float = NETWORK_SHARE
    ) -> Floats:
        """[S, M] weighted geometric mean of `excess` + 1 and `slowdown`, minus 1.

        `excess` where the process has no answer.

        Args:
            excess: [S, M] the networks' slowdown - 1.
            numbers, occupied: see `slowdown`.
            network_share: weight of the networks.
        """
        slowdown, of_networks = self.slowdown(numbers, occupied), 1.0 + excess
        if network_share == NETWORK_SHARE:  # ten times as fast as powers
            blend = np.sqrt(slowdown * of_networks) - 1.0
        else:
            blend = slowdown ** (1.0 - network_share) * of_networks**network_share - 1.0
        return np.where(np.isnan(blend), excess, blend)
