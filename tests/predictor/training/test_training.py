from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from models.colocation_network import ColocationNetwork, SetOutput
from predictor.config import TrainingConfig
from predictor.examples.examples import examples_of
from predictor.examples.featurizer import Featurizer
from predictor.training.fit import solo_examples
from predictor.training.networks import colocation_loss, fit, fit_encoder
from profiling.errors import InputError
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source

Tables = tuple[pd.DataFrame, pd.DataFrame]


def losses_of(measured: Tables, config: TrainingConfig) -> dict[str, list[float]]:
    curve: dict[str, list[float]] = {}
    fit(
        examples_of(*measured),
        solo_examples(measured[1]),
        Featurizer(graph_source),
        NETWORK,
        config,
        lambda phase, step, steps, loss: curve.setdefault(phase, []).append(loss),
    )
    return curve


def test_same_seed_same_loss(measured: Tables) -> None:
    first, again = losses_of(measured, TRAINING), losses_of(measured, TRAINING)
    assert first == again
    other = losses_of(measured, replace(TRAINING, seed=1))
    assert other != first


def test_the_loss_falls(measured: Tables) -> None:
    curve = losses_of(measured, replace(TRAINING, epochs=60, encoder_steps=40))
    assert set(curve) == {"encoder", "network 1"}
    # The encoder can gain little: these steps are far from the cost model's, and its corrections are bounded.
    for phase, ratio in (("encoder", 1.0), ("network 1", 0.7)):
        losses = curve[phase]
        assert np.mean(losses[-10:]) < ratio * np.mean(losses[:10])


def test_training_beats_the_initial_network(measured: Tables) -> None:
    examples = examples_of(*measured)
    error = []
    for epochs in (1, 60):
        model = fit(
            examples,
            solo_examples(measured[1]),
            Featurizer(graph_source),
            NETWORK,
            replace(TRAINING, epochs=epochs),
        )
        ratio, latent = model.predict_log_ratio(examples)
        assert (latent >= 0).all()
        error.append(np.abs(np.exp(ratio) / examples.ratio - 1).mean())
        # The same model answers without solo measurements: they are masked inputs.
        blind, _ = model.predict_log_ratio(examples.without_solo())
        assert np.isfinite(blind).all()
        assert not np.allclose(blind, ratio)
    assert error[1] < error[0]


def test_an_encoder_without_rows_keeps_its_initial_weights(measured: Tables) -> None:
    encoder = fit_encoder(solo_examples(measured[1].iloc[:0]), Featurizer(graph_source), NETWORK, TRAINING)
    assert not encoder.correct.weight.any()


def test_fitting_can_start_from_another_encoder(measured: Tables) -> None:
    solo, featurizer = solo_examples(measured[1]), Featurizer(graph_source)
    first = fit_encoder(solo, featurizer, NETWORK, TRAINING)
    embed = first.embed.weight.detach().clone()
    none, some = replace(TRAINING, seed=1, encoder_steps=0), replace(TRAINING, encoder_steps=5)
    assert torch.equal(fit_encoder(solo, featurizer, NETWORK, none, start=first).embed.weight, embed)
    assert not torch.equal(fit_encoder(solo, featurizer, NETWORK, some, start=first).embed.weight, embed)


def output(*log_ratio: float) -> SetOutput:
    zero = torch.zeros(len(log_ratio))
    return SetOutput(-torch.tensor(log_ratio), zero, zero)


def test_a_censored_ratio_is_a_lower_bound() -> None:
    target, censored, measured = torch.tensor([-0.5]), torch.tensor([True]), torch.tensor([True])

    def loss(predicted: float, bound: torch.Tensor) -> float:
        return float(colocation_loss(output(predicted), target, measured, bound, 0.05))

    assert loss(-0.2, censored) == 0.0
    assert 0 < loss(-0.8, censored) == loss(-0.8, ~censored)
    assert loss(-0.2, ~censored) > 0


def test_unmeasured_targets_add_no_loss() -> None:
    target = torch.tensor([-0.5, float("nan")])
    measured = ~torch.isnan(target)
    unlikely = colocation_loss(output(-0.4, -9.0), target, measured, torch.zeros(2, dtype=torch.bool), 0.05)
    likely = colocation_loss(output(-0.4, 0.0), target, measured, torch.zeros(2, dtype=torch.bool), 0.05)
    assert torch.isfinite(unlikely)
    assert unlikely == likely


def test_invalid_configuration_is_rejected() -> None:
    with pytest.raises(InputError, match=r"training\.epochs"):
        TrainingConfig(epochs=0)


def test_a_campaign_with_another_definition_of_a_step_is_left_out(measured: Tables) -> None:
    solo = measured[1]
    epochs = solo.assign(step_time_s=solo.step_time_s * 200, campaign="epochs")
    again = solo.assign(step_time_s=solo.step_time_s * 1.2, campaign="again")
    examples = solo_examples(pd.concat([solo, epochs, again], ignore_index=True))
    assert len(examples.workloads) == 2 * len(solo)
    assert max(examples.step_time_s) <= 1.2 * solo.step_time_s.max()


@pytest.mark.parametrize("hidden", [0.0, 0.5])
def test_hiding_campaigns_trains_the_unknown_campaigns_column(measured: Tables, hidden: float) -> None:
    """Predictions for users use that column, which would otherwise keep its initial weights."""
    examples, solo = examples_of(*measured), solo_examples(measured[1])
    config = replace(TRAINING, campaign_dropout=hidden, mixed_sets=0)
    network = fit(examples, solo, Featurizer(graph_source), NETWORK, config).networks[0]
    torch.manual_seed(config.seed * 1000)
    start = ColocationNetwork(network.config, network.campaigns)
    assert torch.equal(network.prior.raw[-1], start.prior.raw[-1]) == (hidden == 0.0)
    # Weight decay alone keeps a column's direction.
    was, now = start.enter.weight[:, -1], network.enter.weight[:, -1]
    same = torch.allclose(now / now.norm(), was / was.norm(), atol=1e-5)
    assert same == (hidden == 0.0)


def test_sets_without_a_measured_ratio_add_no_loss() -> None:
    nothing = torch.zeros(2, dtype=torch.bool)
    assert colocation_loss(output(-0.4, -9.0), torch.full((2,), torch.nan), nothing, nothing, 0.05) == 0.0


def test_a_training_that_diverges_is_an_error(measured: Tables) -> None:
    with pytest.raises(InputError, match=r"diverged \(network 1\).*learning rate"):
        losses_of(measured, replace(TRAINING, learning_rate=1e30, epochs=5))
