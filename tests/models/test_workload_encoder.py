from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.cost.job import pass_mask
from models.workload_encoder import OPERATOR_BOUND, STEP_BOUND, EncoderConfig, Encoding, WorkloadEncoder
from predictor.examples.featurizer import Featurizer
from predictor.fitted.model import encoder_input
from profiling.errors import InputError
from profiling.workload import Workload
from tests.predictor.synthetic import NETWORK, graph_source

CONFIG = NETWORK.encoder


def encode(encoder: WorkloadEncoder, *specs: str) -> Encoding:
    featurizer = Featurizer(graph_source)
    jobs = [featurizer.job(Workload.parse(spec), "v100") for spec in specs]
    with torch.no_grad():
        return encoder.eval()(*encoder_input(jobs, featurizer))


def trained_somehow(config: EncoderConfig = CONFIG) -> WorkloadEncoder:
    """Heads start at zero; perturb them so that their inputs have an effect."""
    torch.manual_seed(3)
    encoder = WorkloadEncoder(config)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return encoder


def test_starts_at_the_cost_model() -> None:
    featurizer = Featurizer(graph_source)
    job = featurizer.job(Workload("alpha"), "v100")
    result = encode(WorkloadEncoder(CONFIG), "alpha")
    busy = torch.tensor(job.cost.operators.busy_s, dtype=torch.float32)
    torch.testing.assert_close(result.operator_s, busy, rtol=1e-5, atol=0)
    assert float(result.log_step_s.exp()) == pytest.approx(job.cost.step_time_s, rel=1e-5)


def test_a_frozen_prefix_is_a_mask() -> None:
    whole, frozen = encode(trained_somehow(), "gamma", "gamma:frozen_prefix=3").operator_s.chunk(2, 1)
    mask = pass_mask(graph_source(Workload("gamma")), Workload("gamma", frozen_prefix=3))
    assert 0 < mask[1].sum() < mask[0].sum()
    torch.testing.assert_close(frozen, whole * torch.from_numpy(mask).float())


def test_graphs_do_not_see_each_other() -> None:
    encoder = trained_somehow()
    together = encode(encoder, "alpha", "beta", "delta")
    for row, name in enumerate(("alpha", "beta", "delta")):
        alone = encode(encoder, name)
        torch.testing.assert_close(together.embedding[row], alone.embedding[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(together.log_step_s[row], alone.log_step_s[0], rtol=1e-4, atol=1e-6)


def test_corrections_are_bounded() -> None:
    encoder = trained_somehow()
    for parameter in encoder.parameters():
        parameter.data *= 100
    moved = encode(encoder, "beta").log_step_s - encode(WorkloadEncoder(CONFIG), "beta").log_step_s
    assert abs(float(moved)) <= OPERATOR_BOUND + STEP_BOUND + 0.01


def test_switches_have_their_effect() -> None:
    assert not encode(trained_somehow(replace(CONFIG, use_graph=False)), "alpha").embedding.any()
    seen, blind = trained_somehow(), trained_somehow(replace(CONFIG, use_edge=False))
    assert not torch.equal(encode(seen, "alpha").embedding, encode(blind, "alpha").embedding)


@pytest.mark.parametrize("change", [{"width": 0}, {"layers": 1.5}, {"form": "gat"}])
def test_invalid_configuration_is_rejected(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match="encoder"):
        EncoderConfig(**change)  # type: ignore[arg-type]
