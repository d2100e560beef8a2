"""How a predictor is fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling.checked_fields import check_fields
from profiling.errors import InputError

# (phase, step, steps, loss): called once per epoch.
LossCallback = Callable[[str, int, int, float], None]


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How the model is fitted.

    Attributes:
        seed: of everything random; the same seed gives the same loss.
        ensemble: number of co-location networks.
        encoder_steps, encoder_batch, encoder_learning_rate: pre-training on solo step times, so many graphs a step.
        encoder_scale: Cauchy scale of the log error of a solo step time; larger residuals are down-weighted: loaders and simulators
            that keep a GPU waiting say nothing of other models' graphs.
        epochs, learning_rate, weight_decay: of the co-location networks.
        prior_learning_rate: of the analytic prior's weights.
        beta: log-ratio error below which the loss is quadratic.
        campaign_dropout: share of sets whose campaign is hidden, so that an unknown one is met in training.
        baseline_decay: weight decay of the head that explains how solo baselines were measured.
        mixed_sets: invented pairs per way of seeing (with and without solo) that the forest teaches in one epoch; 0 for none.
        synthetic_batches: batches of invented pairs, taken in turn.
        teacher_trees: trees of that forest.
        teaching: weight of the forest's answers beside the measured ones.
        shared_sets: invented sets of no campaign whose jobs' utilisation is known, taught by processor sharing; 0 for none.
        process: whether a Gaussian process over the training sets answers with the networks.
    """

    seed: int = 0
    ensemble: int = 1
    encoder_steps: int = 120
    encoder_batch: int = 16
    encoder_learning_rate: float = 0.01
    encoder_scale: float = 0.3
    epochs: int = 300
    learning_rate: float = 0.01
    weight_decay: float = 0.02
    prior_learning_rate: float = 0.03
    beta: float = 0.05
    campaign_dropout: float = 0.15
    baseline_decay: float = 0.1
    mixed_sets: int = 500
    synthetic_batches: int = 12
    teacher_trees: int = 120
    teaching: float = 4.0
    shared_sets: int = 400
    process: bool = True

    def __post_init__(self) -> None:
        check_fields("training", self, positive=("ensemble", "encoder_batch", "epochs", "teacher_trees"))
        if self.campaign_dropout > 1:
            raise InputError(
                "training.campaign_dropout is out of range",
                expected="a number from 0 to 1",
                got=self.campaign_dropout,
            )


def read_config(path: Path | None) -> dict[str, Any]:
    """A YAML file with `network:` and `training:`, unchecked; nothing without one.

    Raises:
        InputError: there is no such file, or it is not a mapping in YAML.
    """
    import yaml

    from profiling.yaml_files import read_yaml

    if path is None:
        return {}
    expected = "YAML with network: and training:"
    try:
        body = read_yaml(path.read_text(encoding="utf-8"))
    except InputError as error:
        raise error.at(path) from None
    except FileNotFoundError:
        raise InputError(f"no configuration at {path}", expected=expected, hint="check the path") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        got = " ".join(str(error).split())[:160]
        raise InputError(f"configuration {path} cannot be read", expected=expected, got=got) from None
    if body is not None and not isinstance(body, dict):
        raise InputError(f"configuration {path}", expected=expected, got=type(body).__name__)
    return body or {}
