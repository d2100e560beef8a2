"""The plan for one card with intervals, given a predictor or a posterior with observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from predictor.answering.never_measured import never_measured
from predictor.answering.transferred import as_uncertain, observed_alone, transfer_from
from predictor.learning.posterior import Posterior
from predictor.types import Prediction, Quantity
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload
from scheduling.slices.card_plan import SlicePlan
from scheduling.slices.options import SliceConfig, SliceJob
from scheduling.slices.plan import plan_slices


@dataclass(frozen=True, slots=True)
class AnsweredPlan:
    """A plan, and what is predicted of its slices.

    Attributes:
        plan: of the jobs as they are known, see `jobs_as_known`.
        told: these jobs.
        answers: for each slice of the plan, the prediction of its jobs; None if it is empty.
        never_measured: what was never measured of them.
    """

    plan: SlicePlan
    told: tuple[Workload, ...]
    answers: tuple[Prediction | None, ...]
    never_measured: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Convert to the JSON object of `cotenant plan slices --json`."""
        body = self.plan.to_json()
        for part, answer in zip(body["slices"], self.answers, strict=True):
            for job, member in zip(part["jobs"], answer.members if answer else (), strict=True):
                job["step_time_interval_s"] = [member.step_time_s.lower, member.step_time_s.upper]
        return body | {"never_measured": list(self.never_measured)}


def jobs_as_known(
    workloads: Sequence[Workload], iterations: Sequence[float | None], card: str, belief: Any
) -> list[SliceJob]:
    """The jobs with what was observed of them alone on the card, as their SPECs would state it.

    Args:
        iterations: steps left of each; all None if there are none.
        belief: a predictor, or a posterior over one.

    Raises:
        InputError: `iterations` has another length, or is out of range.
    """
    steps = iterations or [None] * len(workloads)
    if len(steps) != len(workloads):
        raise InputError(
            "iterations do not match the jobs", expected=f"{len(workloads)} numbers, or none", got=len(steps)
        )
    told = [belief.told(card, "time-slice", w) if isinstance(belief, Posterior) else w for w in workloads]
    return [SliceJob(workload, left) for workload, left in zip(told, steps, strict=True)]


def answered_plan(
    workloads: Sequence[Workload],
    iterations: Sequence[float | None],
    device: str,
    belief: Any,
    config: SliceConfig = SliceConfig(),
) -> AnsweredPlan:
    """The best use of one card for these jobs; see `plan_slices`.

    What was observed on the card is carried over to slices and shares; what was observed there counts there.

    Args:
        workloads, iterations, belief: as for `jobs_as_known`.

    Raises:
        InputError: no jobs, or a job that the card cannot run, or see `jobs_as_known`.
        InfeasibleError: no job fits on the card at all.
        LimitError: more jobs than the exact search supports.
    """
    card = get_device(device).name
    jobs = jobs_as_known(workloads, iterations, card, belief)
    told = tuple(job.workload for job in jobs)
    plan = plan_slices(jobs, card, belief, config)
    sets = plan.chosen.sets(jobs, transfer_from(belief, card))
    alone = [m.members[0].step_time_s for m in belief.predict_many([ColocationSet(card, (w,)) for w in told])]

    def before(number: int, there: Workload, on: str) -> Quantity | None:
        """The step time of a job alone on the card; None if it was observed in its place."""
        seen = observed_alone(belief, there, on).step_time_s if isinstance(belief, Posterior) else None
        return alone[number] if seen is None else None

    answers = tuple(
        None
        if asked is None or placed.option is None
        else as_uncertain(
            belief.predict(asked), card,
            [before(*each, asked.device) for each in zip(placed.option.members, asked.workloads, strict=True)],
        )
        for placed, asked in zip(plan.chosen.slices, sets, strict=True)
    )  # fmt: skip
    plain = belief.predictor if isinstance(belief, Posterior) else belief
    return AnsweredPlan(plan, told, answers, tuple(never_measured(plain, list(filter(None, sets)))))
