"""One tiny predictor, fitted once for all tests in this folder."""

from __future__ import annotations

import pandas as pd
import pytest

from predictor.predictor import Predictor
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source, tables


@pytest.fixture(scope="session")
def measured() -> tuple[pd.DataFrame, pd.DataFrame]:
    return tables()


@pytest.fixture(scope="session")
def predictor(measured: tuple[pd.DataFrame, pd.DataFrame]) -> Predictor:
    return Predictor(NETWORK, TRAINING, graph_source, "test").fit(*measured)
