"""Everything that the answers of a posterior are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from predictor.learning.config import PosteriorConfig
from predictor.learning.corrections import Corrections
from predictor.learning.evidence import of_slowdowns, of_solo_step_times
from predictor.learning.known_members import KnownMembers
from predictor.learning.measured_alone import MeasuredAlone, ToldTable
from predictor.learning.observed import Observed
from predictor.learning.parts import PairSlowdowns
from predictor.learning.process import Process
from predictor.learning.shifts import Shifts
from predictor.learning.solo_errors import SoloErrors
from predictor.types import SetPredictor

if TYPE_CHECKING:
    from predictor.examples.examples import Integers


@dataclass(frozen=True, slots=True)
class State:
    """A posterior's answers follow from these; a new one is made when something was observed.

    Attributes:
        told: the observations, with answers of the predictor once it is told.
        measured: what to tell the predictor of jobs alone.
        told_table: the same for rows of its job table.
        solo: errors of predicted solo step times.
        process: of slowdowns, given these.
        corrections, shifts: what it says of sets, as arrays and with what it stands on.
        pairs: corrected slowdowns of pairs.
        under_mps: devices with sets observed under MPS.
    """

    told: Observed
    measured: MeasuredAlone
    told_table: ToldTable
    solo: SoloErrors
    process: Process
    corrections: Corrections
    shifts: Shifts
    pairs: PairSlowdowns
    under_mps: frozenset[str]

    @classmethod
    def of(
        cls,
        predictor: SetPredictor,
        observed: Observed,
        known: KnownMembers,
        config: PosteriorConfig,
        process: Process | None,
        told: Observed,
        measured: MeasuredAlone,
        *,
        shifts: Callable[[Process, Integers, SoloErrors, Integers, Integers], Shifts],
    ) -> State:
        """The state after `observed`.

        Args:
            predictor: the prior mean.
            known: numbers the members.
            process, told: of the state before, which save time and change nothing.
            measured: what was observed of jobs alone.
            shifts: made from the process and the numbers of the rows in `observed` that it uses, and from what
                `of_solo_step_times` returns.
        """
        kept = observed.lowest(config.most_observed)
        told = measured.told_rows(observed, kept, known, predictor, told)
        solo, solo_rows, jobs = of_solo_step_times(told, kept, known, config)
        rows = kept[(told.partners[kept] >= 0).any(1)]
        evidence = of_slowdowns(told, rows, known, config, solo)
        given = Process(config.parameters, evidence, config.most_rows, process)
        corrections = Corrections(given, solo)
        return cls(
            told,
            measured,
            ToldTable(measured, getattr(predictor, "table_", None)),
            solo,
            given,
            corrections,
            shifts(given, rows[given.used], solo, solo_rows, jobs),
            PairSlowdowns(predictor, lambda *pairs: corrections.slowdown(known.members, *pairs)),
            frozenset(key[0] for key in observed.keys if key[1] == "mps" and key[3]),
        )
