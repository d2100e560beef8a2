"""Sources that a fit of the cost model leaves out."""

import pandas as pd
import pytest

from predictor.training.cost.rows import without_sources
from profiling.errors import UnknownNameError


def test_rows_of_a_source_are_left_out() -> None:
    table = pd.DataFrame({"source": ["miso", "timm", "miso"], "step_time_s": [1.0, 2.0, 3.0]})
    assert without_sources(table, ["miso"])["step_time_s"].tolist() == [2.0]
    assert len(without_sources(table, [])) == 3


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="mizo"):
        without_sources(pd.DataFrame({"source": ["miso"]}), ["mizo"])
