"""Observations that a model was trained on, by which it is not corrected a second time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from predictor.examples.observations import Observation, set_ids_of, with_listed_device
from predictor.types import SetPredictor


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """What a model was trained on: observations of its sets that were made with another model.

    Those made with itself came later. One whose model is unknown counts as made with another.

    Attributes:
        version: of the model.
        set_ids: names of its sets, as in its manifest.
    """

    version: str
    set_ids: frozenset[str]

    @classmethod
    def of(cls, predictor: SetPredictor) -> TrainedOn:
        manifest = getattr(getattr(predictor, "fitted_", None), "manifest", None)
        set_ids = getattr(manifest, "set_ids", ())
        return cls(str(getattr(predictor, "version", "")), frozenset(map(with_listed_device, set_ids)))

    def __contains__(self, observation: Observation) -> bool:
        if observation.model_version == self.version or not self.set_ids:
            return False
        return not self.set_ids.isdisjoint(set_ids_of(observation.colocation_set))


def new_to(predictor: SetPredictor, observations: Sequence[Observation]) -> list[Observation]:
    """The observations that the model was not trained on; a warning says how many it was."""
    trained_on = TrainedOn.of(predictor)
    kept = [o for o in observations if o not in trained_on]
    if left := len(observations) - len(kept):
        verb = "observation is" if left == 1 else "observations are"
        warnings.warn(
            f"{left} {verb} not applied: {trained_on.version} was trained on the same sets", stacklevel=2
        )
    return kept
