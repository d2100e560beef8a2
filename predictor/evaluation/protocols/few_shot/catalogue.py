"""The few-shot protocols by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from predictor.evaluation.protocols.few_shot import page, runner, solo

Done = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """A few-shot protocol as it is listed and run.

    Attributes:
        name, about: as for any protocol.
        campaigns: campaigns of the rows.
        target: what is scored.
        learners: names of the learners, all of which take part together.
        report: makes the report from (tables, the command as stated in the report, a function called with
            each finished architecture).
        markdown: formats a report as a page.
    """

    name: str
    about: str
    campaigns: tuple[str, ...]
    target: str
    learners: tuple[str, ...]
    report: Callable[[dict[str, Any], str, Done], dict[str, Any]]
    markdown: Callable[[dict[str, Any]], str]


LEARNING_CURVES = {
    curve.name: curve
    for curve in (
        *(
            LearningCurve(
                p.name, p.about, p.campaigns, runner.TARGET, p.names, partial(runner.report, p), page.of_sets
            )
            for p in runner.FEW_SHOT
        ),
        LearningCurve(
            solo.NAME, solo.ABOUT, solo.CAMPAIGNS, solo.TARGET, solo.LEARNERS, solo.report, page.of_jobs
        ),
    )
}
