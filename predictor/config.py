"""Training configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling.checked_fields import check_fields
from profiling.errors import InputError, one_line

# (phase, step, steps, loss): called once per epoch.
LossCallback = Callable[[str, int, int, float], None]


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Configuration of a training.

    Attributes:
        seed: random seed; the same seed gives the same loss.
        ensemble: number of co-location networks.
        encoder_steps, encoder_batch, encoder_learning_rate: pre-training on solo step times, `encoder_batch`
            graphs per step.
        encoder_scale: Cauchy scale of the log error of a solo step time; larger residuals are down-weighted,
            because loaders and simulators that keep a GPU waiting say nothing about other models' graphs.
        epochs, learning_rate, weight_decay: for the co-location networks.
        prior_learning_rate: for the analytic prior's weights.
        beta: log-ratio error below which the loss is quadratic.
        campaign_dropout: share of sets whose campaign is hidden, so that training covers an unknown campaign.
        baseline_decay: weight decay of the head that explains how solo baselines were measured.
        mixed_sets: synthetic pairs per view (with and without solo) labelled by the forest in each epoch; 0
            for none.
        synthetic_batches: batches of synthetic pairs, used in turn.
        teacher_trees: number of trees in that forest.
        teaching: weight of the forest's labels relative to measured ones.
        shared_sets: synthetic sets without a campaign whose jobs' utilisation is known, labelled by processor
            sharing; 0 for none.
        inferred_sets: the same on GPU types without measured sets, utilisation unknown; 0 for none.
        process: whether to average with a Gaussian process over the training sets.
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
    teaching: float = 1.5
    shared_sets: int = 1200
    inferred_sets: int = 1200
    process: bool = True

    def __post_init__(self) -> None:
        check_fields(
            "training",
            self,
            positive=(
                "ensemble",
                "encoder_batch",
                "encoder_learning_rate",
                "epochs",
                "learning_rate",
                "teacher_trees",
            ),
            most={"ensemble": 100, "teacher_trees": 10_000},
        )
        if self.campaign_dropout > 1:
            raise InputError(
                "training.campaign_dropout is out of range",
                expected="a number from 0 to 1",
                got=self.campaign_dropout,
            )


def read_config(path: Path | None) -> dict[str, Any]:
    """Read a YAML file with `network:` and `training:`, unchecked; empty if None.

    Raises:
        InputError: the file does not exist or is not a YAML mapping.
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
        got = one_line(error)
        raise InputError(f"configuration {path} cannot be read", expected=expected, got=got) from None
    if body is not None and not isinstance(body, dict):
        raise InputError(f"configuration {path}", expected=expected, got=type(body).__name__)
    return body or {}
