from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.workload_encoder import OPERATOR_BOUND, STEP_BOUND, EncoderConfig, Encoding, WorkloadEncoder
from predictor.examples.examples import SoloExamples
from predictor.examples.featurizer import Featurizer
from predictor.fitted.model import encoder_input
from predictor.training.networks import remember_solo
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
    """Heads start at zero; move them, so that what they see can show."""
    torch.manual_seed(3)
    encoder = WorkloadEncoder(config)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return encoder


def test_starts_at_the_roofline() -> None:
    featurizer = Featurizer(graph_source)
    job = featurizer.job(Workload("alpha"), "v100")
    result = encode(WorkloadEncoder(CONFIG), "alpha")
    torch.testing.assert_close(
        result.operator_s, torch.tensor(job.times.busy_s, dtype=torch.float32), rtol=1e-5, atol=0
    )
    longest = max(job.times.busy_s.sum(), job.demand.launch_s)
    # A smooth maximum of two lies at most log(2)/4 above the larger.
    assert longest <= float(result.log_step_s.exp()) * 1.0001 <= longest * 1.19


def test_a_frozen_prefix_is_a_mask() -> None:
    whole, frozen = encode(trained_somehow(), "gamma", "gamma:frozen_prefix=3").operator_s.chunk(2, 1)
    layer = torch.tensor([op.layer_index for op in graph_source(Workload("gamma")).operators])
    torch.testing.assert_close(frozen[0], whole[0])
    assert not frozen[1, layer < 3].any()
    torch.testing.assert_close(frozen[1, layer >= 3], whole[1, layer >= 3])


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
    encoder.prior = WorkloadEncoder(CONFIG).prior
    moved = encode(encoder, "beta").log_step_s - encode(WorkloadEncoder(CONFIG), "beta").log_step_s
    assert abs(float(moved)) <= OPERATOR_BOUND + STEP_BOUND + 0.01


def test_known_jobs_correct_those_like_them() -> None:
    encoder, featurizer = WorkloadEncoder(CONFIG), Featurizer(graph_source)
    specs = ("alpha", "alpha:batch_size=64", "beta", "gamma", "delta")
    before = encode(encoder, *specs).log_step_s
    solo = SoloExamples(
        tuple(Workload.parse(spec) for spec in specs[:3]),
        ("v100",) * 3,
        np.exp(before[:3].numpy() + np.array([1.0, 1.0, -1.0])),
    )
    remember_solo(encoder, solo, featurizer)
    after = encode(encoder, *specs)
    moved = (after.log_step_s - before).numpy()
    assert moved[:3] == pytest.approx([1.0, 1.0, -1.0], abs=0.2)
    assert abs(moved[3:]).max() < 0.2
    torch.testing.assert_close(after.log_graph_step_s, before)
    again = WorkloadEncoder(CONFIG)
    again.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(encode(again, *specs).log_step_s, after.log_step_s)


def test_what_disagrees_counts_where_it_is_nearest() -> None:
    encoder, featurizer = WorkloadEncoder(CONFIG), Featurizer(graph_source)
    step_s = float(encode(encoder, "alpha").log_step_s.exp())
    solo = SoloExamples((Workload("alpha"),) * 2, ("v100",) * 2, step_s * np.array([50.0, 1.5]))
    off = remember_solo(encoder, solo, featurizer)
    assert len(encoder.known.weight) == 1
    assert float(encode(encoder, "alpha").log_step_s.exp()) == pytest.approx(1.5 * step_s, rel=0.05)
    # Without the job itself nothing is known, so all of its error is left.
    assert off == pytest.approx(np.log([50.0, 1.5]), abs=1e-3)


def test_switches_have_their_effect() -> None:
    assert not encode(trained_somehow(replace(CONFIG, use_graph=False)), "alpha").embedding.any()
    seen, blind = trained_somehow(), trained_somehow(replace(CONFIG, use_edge=False))
    assert not torch.equal(encode(seen, "alpha").embedding, encode(blind, "alpha").embedding)


@pytest.mark.parametrize("change", [{"width": 0}, {"layers": 1.5}, {"form": "gat"}])
def test_refuses_a_bad_configuration(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match="encoder"):
        EncoderConfig(**change)  # type: ignore[arg-type]
