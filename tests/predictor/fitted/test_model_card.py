from __future__ import annotations

from pathlib import Path

import predictor
from predictor import load_predictor
from predictor.fitted.model_card import model_card
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
    assert "Larger sets, and devices and sharing modes without measured sets, use the networks alone." in card
    assert "Sets of inference jobs were not measured; they are predicted by processor sharing." in card
