"""Everything that the answers of a posterior are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from predictor.gaussian_process.known_members import KnownMembers
from predictor.gaussian_process.process import Process
from predictor.gaussian_process.set_process import NETWORK_SHARE
from predictor.learning.answers.basis import Bases, Label
from predictor.learning.answers.corrections import Corrections
from predictor.learning.answers.corrector import Corrector
from predictor.learning.answers.pair_answers import PairAnswers, rows_in_answers
from predictor.learning.answers.pair_bounds import PairBounds
from predictor.learning.answers.parts import PartSlowdowns
from predictor.learning.answers.related_alone import RelatedAlone
from predictor.learning.answers.stated_alone import StatedAlone
from predictor.learning.evidence.config import PosteriorConfig
from predictor.learning.evidence.expected_sets import ExpectedSets
from predictor.learning.evidence.measured_alone import MeasuredAlone, ToldTable
from predictor.learning.evidence.network_share import learned_share
from predictor.learning.evidence.observed import Observed
from predictor.learning.evidence.prior import Compared, Priors
from predictor.learning.evidence.solo_errors import SoloErrors
from predictor.learning.evidence.solo_limits import SoloLimits
from predictor.learning.evidence.step_times import Conditioning, of_slowdowns, of_solo_step_times
from predictor.learning.memory.ran_out import RanOut
from predictor.learning.memory.ran_together import RanTogether
from predictor.learning.memory.related_memory import RelatedMemory, memory_of
from predictor.types import SetPredictor
from profiling.workload import ColocationSet

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


@dataclass(frozen=True, slots=True)
class State:
    """A posterior's answers follow from these; a new one is made when something was observed.

    Attributes:
        predictor: the prior mean, in which the networks have the weight that was learned.
        unweighted: the same with their weight before; memory: what was learned of memory, in both.
        told: the observations, with answers of the predictor once it is told.
        kept: numbers of the rows of these that count.
        measured: what to tell the predictor of jobs alone.
        told_table: the same for rows of its job table.
        solo, limits: errors of predicted solo step times, and their limits.
        process: of slowdowns, given these.
        corrections: what it says of sets, as arrays.
        pair_answers: the same of single members, with what it stands on; bases: in words; corrector: applies it.
        related: what to tell the predictor of jobs of which others were observed alone.
        pair_bounds: largest slowdowns of pairs; parts: corrected ones of pairs and triples.
        under_mps: devices with sets observed under MPS.
        ran_out: whether sets fit, given those that ran, and those that ran out of memory.
    """

    predictor: Any
    unweighted: Any
    memory: RelatedMemory | None
    told: Observed
    kept: Integers
    measured: MeasuredAlone
    told_table: ToldTable
    solo: SoloErrors
    limits: SoloLimits
    process: Process
    corrections: Corrections
    related: RelatedAlone
    pair_answers: PairAnswers
    bases: Bases
    corrector: Corrector
    pair_bounds: PairBounds
    parts: PartSlowdowns
    under_mps: frozenset[str]
    ran_out: RanOut

    @classmethod
    def of(
        cls,
        predictor: SetPredictor,
        observed: Observed,
        known: KnownMembers,
        config: PosteriorConfig,
        earlier: State | None,
        measured: MeasuredAlone,
        only_ran: Observed,
        ran_out: Observed,
        *,
        priors: Priors,
        labels: dict[int, Label],
        expected_sets: ExpectedSets,
    ) -> State:
        """The state after `observed`.

        Args:
            predictor: the prior mean.
            known: numbers the members.
            earlier: the state before, which saves time and changes nothing.
            measured: what was observed of jobs alone.
            only_ran: the same that say nothing but that the sets ran; ran_out: sets that ran out of memory.
            priors: what is known without observations.
            labels: cache of the observations in words; expected_sets: of what was expected of them.
        """
        # What counts as observed, with the predictor's answers once it is told of jobs alone.
        kept = observed.sample(config.most_observed, None if earlier is None else earlier.kept)
        numbers = measured.told_members(known, predictor)
        before = (Observed.nothing(), kept[:0]) if earlier is None else (earlier.told, earlier.kept)
        told = measured.told_rows(observed, kept, numbers, predictor, *before)
        rows = kept[(told.partners[kept] >= 0).any(1)]
        # Evidence of slowdowns, given solo step times; without training pairs if it contradicts them.
        prior = priors.of(known.members, told.own[rows])
        errors, process = (None, None) if earlier is None else (earlier.solo, earlier.process)
        while True:
            solo, solo_rows, jobs = of_solo_step_times(told, kept, known, config, prior, errors)
            limits = SoloLimits(told, numbers, known, solo)
            evidence = of_slowdowns(told, rows, known, config, solo, limits)
            some = priors.compared(prior, evidence)
            if not priors.contradicted(prior, some):
                break
            prior = priors.ignorant
        # The predictor with what was learned of its parts, and the evidence around its answers.
        share = _network_share(told, rows, some, config.parameters.knee)
        memory = _related_memory(predictor, known, measured, earlier)
        unweighted: Any = predictor
        if memory is not None:
            unweighted = unweighted.with_memory(memory)
        weighted = unweighted
        if share != NETWORK_SHARE:
            weighted = weighted.with_network_share(share)
        expected = expected_sets.of(told, rows, share, weighted, measured)
        moved = expected - told.expected(rows, config.parameters.knee, NETWORK_SHARE)
        evidence = replace(evidence, target=evidence.target - moved)
        # The process, and what it says of queries.
        given = Process(prior.parameters, prior.and_observed(evidence), config.most_rows, process)
        confirmed, sets = (rows[own.row - given.evidence.training] for own in (given.confirmed, given.sets))
        used, places, shares = rows_in_answers(
            rows[given.observed], confirmed, sets, solo_rows, jobs, len(solo)
        )
        conditioning = Conditioning(given, told, rows, expected, known)
        stated = StatedAlone(conditioning, measured, weighted)
        ran = RanTogether(observed, only_ran, known, None if earlier is None else earlier.ran_out.ran)
        pair_bounds = PairBounds(conditioning, stated)
        corrections = Corrections(given, solo, limits, stated, pair_bounds, known)
        return cls(
            predictor=weighted,
            unweighted=unweighted,
            memory=memory,
            told=told,
            kept=kept,
            measured=measured,
            told_table=ToldTable(measured, getattr(predictor, "table_", None)),
            solo=solo,
            limits=limits,
            process=given,
            corrections=corrections,
            related=RelatedAlone(told, numbers, known, corrections),
            pair_answers=PairAnswers(given, solo, prior, known, places, shares, limits, stated),
            bases=Bases(observed, used, labels),
            corrector=Corrector(config.parameters),
            pair_bounds=pair_bounds,
            parts=PartSlowdowns(
                weighted, corrections.slowdown, corrections.confirmed if len(given.sets) else None
            ),
            under_mps=frozenset(key[0] for key in observed.keys if key[1] == "mps" and key[3]),
            ran_out=RanOut(ran_out, known, ran),
        )

    def memory_words(self, sets: Sequence[ColocationSet]) -> list[list[str]]:
        """Per set, what the memory of its members stands on, in words."""
        if self.memory is None:
            return [[] for _ in sets]
        # A workload is looked up once, even if it is in thousands of sets.
        known: dict[tuple[str, str, int], str] = {}
        result = []
        for s in sets:
            found: dict[str, None] = {}
            for workload in s.workloads:
                key = s.device, s.sharing, id(workload)
                if key not in known:
                    known[key] = self.memory.reason(s.device, s.sharing, workload)
                found[known[key]] = None
            result.append([reason for reason in found if reason])
        return result


def _related_memory(
    predictor: Any, known: KnownMembers, measured: MeasuredAlone, earlier: State | None
) -> RelatedMemory | None:
    """None without observed memory that says something of other jobs."""
    if not hasattr(predictor, "with_memory") or not memory_of(measured):
        return None
    before = None if earlier is None else earlier.memory
    return RelatedMemory(predictor, known.spelled.network, measured, before)


def _network_share(told: Observed, rows: Integers, some: Compared, knee: float) -> float:
    """The networks' weight, learned from some of `rows` [R]."""
    compared = rows[some.numbers]
    towards = told.expected(compared, knee, 1.0) - told.expected(compared, knee, 0.0)
    return learned_share(some.evidence.target, some.evidence.noise, towards, some.covariance)
