"""Errors on families of networks that a fit has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from models.cost import default_cost_model
from models.cost.model import CostModel
from predictor.training.cost import left_out
from predictor.training.cost.examples import CostExample, cost_examples
from predictor.training.cost.fit import CostConfig
from predictor.training.cost.left_out import family, left_out_errors
from profiling.capture import graph_for
from tests.predictor.training.cost.test_fit import table

SPECS = [f"torchvision/{name}:batch_size=8" for name in ("resnet18", "resnet50", "vgg11", "squeezenet1_0")]


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("timm/resnet50d.a1_in1k:batch_size=8", "resnet"),
        ("torchvision/vit_b_16", "vit"),
        ("bert", "bert"),
        ("hf/GPT2", "GPT2"),
    ],
)
def test_families_are_the_first_letters_of_a_network(workload: str, expected: str) -> None:
    assert family(workload) == expected


def test_each_family_is_predicted_by_a_fit_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped model takes the place of the fits: rows are 1.5 times as long as it predicts."""
    examples, _ = cost_examples(table(SPECS), graph_for)
    operators = [replace(examples[0], campaign="operators")]
    families = [family(SPECS[e.row]) for e in examples]
    fits: list[tuple[list[CostExample], CostConfig]] = []

    def fit(kept: Sequence[CostExample], config: CostConfig) -> CostModel:
        fits.append((list(kept), config))
        return default_cost_model()

    monkeypatch.setattr(left_out, "fit_cost", fit)
    errors = left_out_errors(examples, operators, families, 3, CostConfig(networks=4))
    of_campaign = errors["error_on_left_out_families"]["lab/training"]
    assert of_campaign == {"rows": 4, "mape_percent": 33.33, "median_ape_percent": 33.33}
    assert errors["log_error_90"] == {"fed_by_host": pytest.approx(np.log(1.5), abs=1e-4)}
    seen = [{family(SPECS[e.row]) for e in kept if e.campaign != "operators"} for kept, _ in fits]
    assert sorted(map(sorted, seen)) == [["resnet", "squeezenet"], ["resnet", "vgg"], ["squeezenet", "vgg"]]
    assert all(sum(e.campaign == "operators" for e in kept) == 1 for kept, _ in fits)
    assert {config.networks for _, config in fits} == {1}
