"""Names that are known before any protocol is imported."""

from __future__ import annotations

import pytest

from predictor.evaluation.protocols.catalogue import PROTOCOLS
from predictor.evaluation.protocols.few_shot.catalogue import LEARNING_CURVES
from predictor.evaluation.protocols.names import NAMES, check_name
from profiling.errors import UnknownNameError


def test_names_match_the_catalogues() -> None:
    assert sorted(NAMES) == sorted([*PROTOCOLS, *LEARNING_CURVES])


def test_unknown_name_suggests_similar_ones() -> None:
    check_name("solo-few-shot")
    with pytest.raises(UnknownNameError, match="lucid-by-model"):
        check_name("lucid-bymodel")
