"""Held-out measured sets, scored during training: the validation curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from models.colocation_network import ColocationNetwork, SetTensors
from models.features import Floats
from predictor.config import LossCallback
from predictor.examples.examples import Examples
from predictor.fitted.model import CotenantModel
from predictor.training.accelerator import moved

VALIDATION = "validation"
"""What the phase of a validation error begins with, as it is reported."""
_POINTS = 20


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out sets as the network's input, with their measurements.

    Attributes:
        places: positions of members in the padded sets.
        log_ratio: [T] measured; usable: [T] measured and not censored.
        answered: score the slowdowns, without the effect of the campaigns' solo runs.
    """

    inputs: SetTensors
    places: tuple[np.ndarray, np.ndarray]
    log_ratio: Floats
    usable: np.ndarray
    answered: bool = False

    @classmethod
    def of(cls, model: CotenantModel, examples: Examples, answered: bool = False) -> HeldOut:
        """`examples` as input for the networks of `model`, whose scaler must have been fitted.

        If `answered`, no campaign is named, as in questions of users.
        """
        examples = examples.without_campaign() if answered else examples
        log_ratio = np.log(examples.ratio)
        usable = ~np.isnan(log_ratio) & ~examples.censored
        return cls(model.inputs(examples), examples.places, log_ratio, usable, answered)

    def mae(self, network: ColocationNetwork) -> float:
        """Mean absolute error of the co-located / solo throughput; leaves the network's mode unchanged."""
        training, device = network.training, next(network.parameters()).device
        with torch.no_grad():
            output = network.eval()(moved(self.inputs, device))
        network.train(training)
        log_ratio = -output.log_slowdown if self.answered else output.log_baseline - output.log_slowdown
        predicted = log_ratio.cpu().numpy()[self.places]
        return float(np.abs(np.exp(predicted) - np.exp(self.log_ratio))[self.usable].mean())

    def report(
        self, network: ColocationNetwork, phase: str, step: int, steps: int, report: LossCallback | None
    ) -> None:
        """Report the error after every twentieth of the steps. Uses no random numbers."""
        if (
            report is not None
            and self.usable.any()
            and (step % max(steps // _POINTS, 1) == 0 or step == steps)
        ):
            report(f"{VALIDATION} {phase}", step, steps, self.mae(network))
