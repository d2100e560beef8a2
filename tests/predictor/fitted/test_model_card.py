from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import predictor
from models.colocation_network import NetworkConfig
from predictor import load_predictor
from predictor.config import TrainingConfig
from predictor.fitted.intervals import Intervals
from predictor.fitted.model_card import model_card
from predictor.predictor import Predictor
from profiling.files import read_json

SHIPPED = Path(predictor.__file__).parent / "checkpoints" / "default"


def test_shipped_card_is_current() -> None:
    comparison = read_json(SHIPPED / "metrics.json")["comparison"]
    card = model_card(load_predictor("default"), comparison)
    assert (SHIPPED / "MODEL_CARD.md").read_text() == card


def test_card_states_which_part_predicts_what() -> None:
    card = model_card(load_predictor("default"), {})
    assert "* 1 co-location network of width" in card
    assert "the slowdown of a pair is the geometric mean" in card
    assert (
        "Larger sets, and devices and sharing modes without measured sets, are predicted by the networks alone; time-sliced larger sets get the mean correction of their pairs."
        in card
    )
    assert "Sets of inference jobs were not measured; they are predicted by processor sharing." in card
    assert "Not measured: there were too few pairs" in card
    assert "| predictor |" not in card
    assert "not calibrated" not in card


def test_card_states_what_was_not_calibrated() -> None:
    known = load_predictor("default")
    fitted = known.fitted_
    one = replace(fitted.manifest, set_ids=fitted.manifest.set_ids[:1])
    few = Predictor.of(
        replace(fitted, intervals=Intervals(), manifest=one), "few", known.network, known.training
    )
    card = model_card(few, {})
    assert "* 1 measured co-location set;" in card
    assert "not calibrated, because no architecture could be held out" in card
    assert "2.60 times without (not calibrated: no GPU type could be held out)." in card


def test_one_new_set_is_singular() -> None:
    known = load_predictor("default")
    tuned = replace(known.fitted_.manifest, ancestors=("before",), added_set_ids=("a",))
    after = Predictor.of(
        replace(known.fitted_, manifest=tuned), "after", known.network or NetworkConfig(), TrainingConfig()
    )
    assert "* Fine-tuned from before; the last time on 1 new set.\n" in model_card(after, {})
