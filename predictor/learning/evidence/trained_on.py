"""Observations that a model was trained on, by which it is not corrected a second time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from predictor.examples.observations import Observation, R, in_order, set_ids_of, with_listed_device
from predictor.types import SetPredictor

if TYPE_CHECKING:
    from predictor.fitted.fitted import Manifest


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """What a model was trained on: observations of its sets that were made before it, or an ancestor, learned them.

    Those made with a model that had learned the set came later, and fine-tuning skips known sets. One whose model is
    unknown counts as made before. Of a member whose ratio was not known nothing was learned.

    Attributes:
        version: of the model.
        generations: of the model and its ancestors: how often each was fine-tuned.
        learned_in: names of its sets, as in its manifest, with the generation that learned each.
        partners: set and position of the members whose ratio was not known.
    """

    version: str
    generations: Mapping[str, int] = field(default_factory=dict)
    learned_in: Mapping[str, int] = field(default_factory=dict)
    partners: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def of(cls, predictor: SetPredictor) -> TrainedOn:
        version = str(getattr(predictor, "version", ""))
        manifest: Manifest | None = getattr(getattr(predictor, "fitted_", None), "manifest", None)
        if manifest is None:
            return cls(version)
        generations = {name: n for n, name in enumerate((*manifest.ancestors, version))}
        added = (*manifest.added_before, manifest.added_set_ids) if manifest.ancestors else ()
        # Checkpoints of earlier versions record what the last fine-tuning added only: the others came before that.
        first = len(manifest.ancestors) - len(added)
        learned_in = dict.fromkeys(map(with_listed_device, manifest.set_ids), first)
        for generation, set_ids in enumerate(added, first + 1):
            learned_in |= dict.fromkeys(map(with_listed_device, set_ids), generation)
        partners = frozenset((with_listed_device(name), place) for name, place in manifest.partners)
        return cls(version, generations, learned_in, partners)

    def __contains__(self, observation: Observation) -> bool:
        if not self.learned_in:
            return False
        made_in = self.generations.get(observation.model_version, -1)
        names = set_ids_of(observation.colocation_set)
        learned = [name for name in names if self.learned_in.get(name, -1) > made_in]
        if not learned or not self.partners:
            return bool(learned)
        place = in_order(observation)[1]
        return any((name, place) not in self.partners for name in learned)


def new_to(predictor: SetPredictor, observations: Sequence[R]) -> list[R]:
    """The observations that the model was not trained on; a warning says how many it was."""
    trained_on = TrainedOn.of(predictor)
    kept = [o for o in observations if not isinstance(o, Observation) or o not in trained_on]
    if left := len(observations) - len(kept):
        verb = "observation is" if left == 1 else "observations are"
        warnings.warn(
            f"{left} {verb} not applied: {trained_on.version} was trained on the same sets", stacklevel=2
        )
    return kept
