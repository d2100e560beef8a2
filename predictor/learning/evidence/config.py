"""How observations are used."""

from __future__ import annotations

from dataclasses import dataclass, field

from predictor.gaussian_process.kernel import KernelParameters
from predictor.gaussian_process.process import UNEXPLAINED
from profiling.checked_fields import check_fields


@dataclass(frozen=True, slots=True)
class PosteriorConfig:
    """How observations are used.

    Attributes:
        parameters: of the kernel, for slowdowns around a constant.
        most_rows: most observed (set, member) pairs used exactly; beyond that, at most this many inducing rows
            represent all.
        most_observed: most observed (set, member) pairs used at all; beyond that, a sample with
            as many of every member as there is room for, first those observed often.
        repeats: number of observations of the same member of the same set beyond which more do not narrow an
            answer.
        learn_solo: whether to also correct predicted solo step times; otherwise the whole error is attributed
            to sharing.
    """

    parameters: KernelParameters = field(default_factory=KernelParameters)
    most_rows: int = 512
    most_observed: int = 20_000
    repeats: int = 16
    learn_solo: bool = True

    @property
    def around_predictor(self) -> KernelParameters:
        """Of the kernel for a predictor's errors, if it is not known where it is right."""
        return self.parameters.scaled(UNEXPLAINED)

    def __post_init__(self) -> None:
        check_fields("posterior", self, positive=("most_rows", "most_observed", "repeats"))
