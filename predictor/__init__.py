"""Training, evaluation, calibration, export and registry of the co-location predictor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.load import load_predictor as load_predictor
    from predictor.predictor import Predictor as Predictor

__all__ = ["Predictor", "load_predictor"]


def __getattr__(name: str) -> Any:
    # Torch takes seconds to import; callers that only want the types should not wait for it.
    if name == "load_predictor":
        from predictor.load import load_predictor

        return load_predictor
    if name == "Predictor":
        from predictor.predictor import Predictor

        return Predictor
    raise AttributeError(f"module 'predictor' has no attribute {name!r}")
