"""Measured sets that a network does not learn from, scored while it learns: the validation curve of a training."""

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
    """Sets that are held out, as the network's input, with what was measured of them.

    Attributes:
        places: of members in the padded sets; measured: [T] log ratio; usable: [T] measured and not censored.
    """

    inputs: SetTensors
    places: tuple[np.ndarray, np.ndarray]
    log_ratio: Floats
    usable: np.ndarray

    @classmethod
    def of(cls, model: CotenantModel, examples: Examples) -> HeldOut:
        """`examples` as the networks of `model` see them; its scaler is fitted by now."""
        log_ratio = np.log(examples.ratio)
        usable = ~np.isnan(log_ratio) & ~examples.censored
        return cls(model.inputs(examples), examples.places, log_ratio, usable)

    def mae(self, network: ColocationNetwork) -> float:
        """Mean absolute error of the co-located / solo throughput; the network is as it was afterwards."""
        training, device = network.training, next(network.parameters()).device
        with torch.no_grad():
            output = network.eval()(moved(self.inputs, device))
        network.train(training)
        predicted = (output.log_baseline - output.log_slowdown).cpu().numpy()[self.places]
        return float(np.abs(np.exp(predicted) - np.exp(self.log_ratio))[self.usable].mean())

    def report(
        self, network: ColocationNetwork, phase: str, step: int, steps: int, report: LossCallback | None
    ) -> None:
        """Tell `report` the error after every twentieth of the steps. It draws nothing at random."""
        if (
            report is not None
            and self.usable.any()
            and (step % max(steps // _POINTS, 1) == 0 or step == steps)
        ):
            report(f"{VALIDATION} {phase}", step, steps, self.mae(network))
