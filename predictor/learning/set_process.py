"""A Gaussian process over the sets that a predictor was fitted to: what jobs like these did beside partners like these.

A network extrapolates where a process falls back to what is common to all. Their errors on architectures that neither has seen are of
different kinds, so the mean of both logs is nearer than either (docs/training.md). Where it knows nothing the process leaves the answer to the network:
on a device or under a sharing mode that it was not told of, and of jobs whose utilisation was measured where it was told of none. The kernel is
that of `predictor.learning.kernel`, around a constant, with its parameters where their search begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from models.features import Floats
from predictor.learning.covariances import Evidence
from predictor.learning.fitting import START
from predictor.learning.kernel import Members
from predictor.learning.known_members import KnownMembers, MemberKey, NamedMembers, Numbers
from predictor.learning.link import from_scale, slope, to_scale
from predictor.learning.measured import MeasuredRows
from predictor.learning.members import MEMBER_FEATURES, MEMBER_WIDTH, MemberScale
from predictor.learning.pair_table import PairBlocks, PairWeights
from predictor.learning.process import Process
from predictor.learning.rows import Rows
from profiling.workload import Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Examples, Integers
    from predictor.examples.featurizer import Featurizer

# Beyond so many measured members of sets, this many stand in for all.
MOST_ROWS = 1024
# Fewer say nothing.
ENOUGH = 8
_UTILIZATION = MEMBER_FEATURES.index("utilization_ratio")
# Share of the time that is left to a member at least, so that no bound is infinite.
_LEAST_LEFT = 1e-6


@dataclass(frozen=True, slots=True)
class _Told:
    """N members of measured sets that a process is told of.

    Attributes:
        features: [V, MEMBER_WIDTH] of the distinct members.
        members: their numbers; places are empty.
        models, jobs, settings: what the numbers stand for; a setting is a device with a sharing mode.
        rows: [N] members beside their partners.
        log_slowdown: [N] measured.
    """

    features: Floats
    members: Members
    models: tuple[str, ...]
    jobs: tuple[Workload, ...]
    settings: tuple[tuple[str, str], ...]
    rows: Rows
    log_slowdown: Floats

    @classmethod
    def of(cls, examples: Examples, featurizer: Featurizer) -> _Told:
        """Those that were measured while all members were on the device. Campaigns are not told apart, for answers name none."""
        resident = [s for s, there in zip(examples.set_ids, examples.resident, strict=True) if there]
        if len(resident) < len(examples.set_ids):
            examples = examples.subset(resident)
        measured = MeasuredRows.of(replace(examples, campaign=("",) * len(examples.campaign)), featurizer)
        rows = measured.rows
        kept = np.flatnonzero(examples.scored & (rows.partners >= 0).any(1))
        return cls(
            measured.features,
            measured.members,
            measured.models,
            measured.jobs,
            tuple((device, sharing) for device, sharing, _ in measured.settings),
            rows.take(kept),
            -np.log(examples.ratio[kept]),
        )


class SetProcess:
    """The process given measured sets. It holds no measurement, only weights.

    Args:
        seen: members that were measured.
        weights: of their pairs.
        centre: of log slowdowns on the scale of `predictor.learning.link`.
        scale: of member features.
        featurizer: reads the graphs of jobs that are asked about.
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
        self._means = PairBlocks(weights, self._log_slowdown, alone=np.nan)
        self._beyond: NDArray[np.bool_] = np.zeros(len(seen.members), dtype=bool)
        self._slowdowns = PairBlocks(weights, lambda mean: np.exp(self._log_slowdown(mean)), alone=1.0)

    @classmethod
    def fit(cls, examples: Examples, featurizer: Featurizer) -> SetProcess | None:
        """From measured sets; None where these are too few."""
        told = _Told.of(examples, featurizer)
        if len(told.rows) < ENOUGH:
            return None
        scale = MemberScale.fit(told.features)
        centre = float(to_scale(told.log_slowdown, START.knee).mean())
        nobody = Members(np.zeros((0, MEMBER_WIDTH + 1)))
        weights = PairWeights(START, nobody, np.zeros((0, 0)), np.zeros(0, np.int64))
        return cls(NamedMembers(nobody), weights, centre, scale, featurizer)._told(told)

    def with_sets(self, examples: Examples) -> SetProcess:
        """Another process that was told of these sets, too. It starts from what this one expects, and is held to that where this one was told
        something."""
        return self._told(_Told.of(examples, self.featurizer))

    def _told(self, told: _Told) -> SetProcess:
        if not len(told.rows):
            return self
        names = ("models", "jobs", "settings")
        numbers = [Numbers(getattr(self.seen, name)) for name in names]
        columns = (told.members.model, told.members.job, told.members.setting)
        renumbered = [
            np.array([known[n] for n in getattr(told, name)], np.int64)[column]
            for known, name, column in zip(numbers, names, columns, strict=True)
        ]
        p, start = self.parameters, len(self.seen.members)
        place = self.scale.place(told.features, p)
        # The last column keeps jobs apart whose graphs cannot be read; these were.
        new = Members(np.concatenate([place, np.zeros((len(place), 1))], 1), *renumbered)
        members = self.seen.members.joined(new)
        own, partner = np.nonzero(self.weights.weight)
        known = Rows(own, partner[:, None], np.zeros(len(own)))
        partners = np.where(told.rows.partners >= 0, told.rows.partners + start, -1)
        rows = Rows(told.rows.own + start, partners, told.rows.solo).joined(known)
        pairs = rows.pairs()
        before = pairs.summed(self.weights.table(members, members)[pairs.own, pairs.partner]) + self.centre
        log_slowdown = np.concatenate([told.log_slowdown, from_scale(before[len(told.rows) :], p.knee)])
        evidence = Evidence(
            members,
            rows,
            to_scale(log_slowdown, p.knee) - before,
            p.noise * slope(log_slowdown, p.knee) ** 2,
            np.zeros(len(rows), dtype=bool),
            np.random.default_rng(0).permutation(len(rows)),
        )
        change = Process(p, evidence, MOST_ROWS).pair_weights
        weight = np.zeros((len(members), len(members)))
        weight[:start, :start] = self.weights.weight
        weight[np.ix_(change.numbers, change.numbers)] += change.weight
        used = np.flatnonzero(weight.any(0) | weight.any(1))
        members, weight = members.take(used), weight[np.ix_(used, used)]
        private = (*self.weights.private, *change.private)
        weights = PairWeights(p, members, weight, np.arange(len(used)), private)
        seen = NamedMembers(members, *map(tuple, numbers))  # type: ignore[arg-type]
        return SetProcess(seen, weights, self.centre, self.scale, self.featurizer)

    def _log_slowdown(self, mean: Floats) -> Floats:
        return np.maximum(from_scale(mean + self.centre, self.parameters.knee), 0.0)

    def numbers(self, keys: Sequence[MemberKey], solo_step_time_s: Sequence[float]) -> list[int]:
        """Number of each (workload with what was measured of it, device, sharing mode).

        Args:
            keys: members.
            solo_step_time_s: measured or predicted for each.
        """
        return self._known.numbers(keys, solo_step_time_s)

    def log_slowdown(self, numbers: Integers, occupied: Floats) -> Floats:
        """[S, M] log slowdowns, at least 0; NaN for a member alone, and for sets of which it knows nothing.

        Args:
            numbers: [S, M] of members, -1 where a set has fewer.
            occupied: [S, M] share of the time that the others of the set occupy together when alone; they leave a member at least the rest.
        """
        most = -np.log(np.maximum(1.0 - occupied, _LEAST_LEFT))
        result = np.minimum(self._means.of_sets(self._known.members, numbers), most)
        result[self._unknown(numbers)] = np.nan
        return result

    def _unknown(self, numbers: Integers) -> NDArray[np.bool_]:
        """[S] whether nothing is known of a set."""
        beyond, members = self._beyond, self._known.members
        if len(beyond) < len(members):
            beyond = members.setting >= len(self.seen.settings)
            if not np.isfinite(self.scale.deviation[_UTILIZATION]):
                beyond |= self._known.utilization_measured[: len(members)]
            self._beyond = beyond
        if not beyond.any():
            return np.zeros(len(numbers), dtype=bool)
        return np.asarray((beyond[numbers] & (numbers >= 0)).any(1))

    def blended(self, excess: Floats, numbers: Integers, occupied: Floats) -> Floats:
        """[S, M] slowdown - 1 whose log is the mean of `log_slowdown` and that of `excess` + 1; `excess` where nothing is known."""
        slowdown = 1.0 / np.maximum(1.0 - occupied, _LEAST_LEFT)
        np.minimum(slowdown, self._slowdowns.of_sets(self._known.members, numbers), out=slowdown)
        slowdown *= 1.0 + excess
        blend = np.sqrt(slowdown, out=slowdown) - 1.0
        unknown = self._unknown(numbers)
        return np.where(unknown[:, None], excess, blend) if unknown.any() else blend
