from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from predictor.examples.observations import Observation, keep, set_id_of, stored
from predictor.fitted.fitted import Manifest
from predictor.learning.evidence.trained_on import TrainedOn, new_to
from predictor.predictor import Predictor
from profiling.errors import ConflictError
from profiling.workload import ColocationSet, Workload

PAIR = ColocationSet("v100", (Workload("resnet18-cifar", 64), Workload("lstm-wikitext2")))
OTHER = ColocationSet("v100", (Workload("resnet18-cifar", 128), Workload("lstm-wikitext2")))


def model(*set_ids: str, **more: Any) -> Any:
    return SimpleNamespace(version="m-2", fitted_=SimpleNamespace(manifest=Manifest(set_ids, **more)))


@pytest.mark.parametrize(
    ("asked", "made_with", "is_trained_on"),
    [(PAIR, "m-1", True), (PAIR, "", True), (PAIR, "m-2", False), (OTHER, "m-1", False)],
)
def test_a_model_was_trained_on_earlier_observations_of_its_sets(
    asked: ColocationSet, made_with: str, is_trained_on: bool
) -> None:
    observation = Observation(asked, 1, 0.04, model_version=made_with)
    assert (observation in TrainedOn.of(model(set_id_of(PAIR)))) == is_trained_on
    assert observation not in TrainedOn.of(model())


def test_the_manifest_of_an_earlier_version_names_what_was_added_last() -> None:
    """Other sets were learned before that, at some time."""
    ids = set_id_of(PAIR), set_id_of(OTHER)
    trained_on = TrainedOn.of(model(*ids, ancestors=("m-0", "m-1"), added_set_ids=ids[1:]))
    for asked, new_with in ((PAIR, {"m-1", "m-2"}), (OTHER, {"m-2"})):
        made = {name: Observation(asked, 1, 0.04, model_version=name) for name in ("m-0", "m-1", "m-2")}
        assert {name for name, o in made.items() if o not in trained_on} == new_with


def test_a_file_of_observations_remembers_the_model(tmp_path: Path) -> None:
    store = tmp_path / "feedback.json"
    keep(
        store,
        [Observation(PAIR, 1, 0.04, model_version="m-1"), Observation(PAIR, 1, 0.05, model_version="m-2")],
    )
    assert [o.model_version for o in stored(store)] == ["m-1", "m-2"]
    with pytest.warns(UserWarning, match="1 observation is not applied: m-2 was trained on the same sets"):
        assert [o.step_time_s for o in new_to(model(set_id_of(PAIR)), stored(store))] == [0.05]
    with pytest.raises(ConflictError):  # the same file, whatever the model
        keep(store, [Observation(PAIR, 1, 0.04), Observation(PAIR, 1, 0.05)])


def test_predictors_without_a_manifest_were_trained_on_nothing() -> None:
    class Own(Predictor):
        fitted_ = True  # type: ignore[assignment]

    assert not TrainedOn.of(Own()).learned_in
