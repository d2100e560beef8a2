"""The graph neural process."""

import pytest

from predictor.evaluation.protocols.few_shot.neural_process import NeuralProcessConfig
from profiling.errors import InputError


@pytest.mark.parametrize(
    ("name", "value"),
    [("width", 0), ("layers", 65), ("episodes", 1.5), ("learning_rate", 0), ("most_shown", -1)],
)
def test_values_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"neural_process.{name} is out of range"):
        NeuralProcessConfig(**{name: value})  # type: ignore[arg-type]
