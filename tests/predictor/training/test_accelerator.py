"""Training stays on its device, as far as a machine without CUDA can show: on `meta` tensors."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch

from predictor.examples.examples import examples_of
from predictor.examples.featurizer import Featurizer
from predictor.fitted.model import encoder_input
from predictor.training import networks as training
from predictor.training.accelerator import moved, training_device
from predictor.training.fit import solo_examples
from predictor.training.targets import TargetBatch
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source

Tables = tuple[pd.DataFrame, pd.DataFrame]


def test_cuda_is_used_if_available(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, name in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert training_device().type == name


def test_all_tensors_of_a_training_batch_move(measured: Tables) -> None:
    model = training.fit(
        examples_of(*measured), solo_examples(measured[1]), Featurizer(graph_source), NETWORK, TRAINING
    )
    sets = model.inputs(examples_of(*measured))
    known = sets.present
    batch = moved(TargetBatch(sets, known.float(), known, known), torch.device("meta"))
    assert batch.target.device == batch.sets.member.device == batch.sets.present.device
    assert batch.target.device.type == "meta"
    assert batch.weight == 1.0


def test_networks_create_no_tensor_on_the_default_device(measured: Tables) -> None:
    examples = examples_of(*measured)
    model = training.fit(
        examples, solo_examples(measured[1]), Featurizer(graph_source), NETWORK, replace(TRAINING, epochs=1)
    )
    sets = model.inputs(examples)
    job = model.featurizer.job(examples.workloads[0], examples.devices[0])
    encoded = encoder_input([job], model.featurizer)
    known = sets.present
    target = torch.zeros(known.shape)
    # What names no device is made on the default one; mixed with tensors of another, it is refused.
    with torch.device("meta"):
        assert torch.zeros(1).device.type == "meta"
        output = model.networks[0].train()(training.hide_campaigns(sets, 0.5))
        training.colocation_loss(output, target, known, ~known, 0.05).backward()
        model.encoder.train()(*encoded).log_step_s.sum().backward()
    assert all(p.grad is None or p.grad.device.type == "cpu" for p in model.networks[0].parameters())
    with pytest.raises(RuntimeError), torch.device("meta"):
        _ = sets.member + torch.zeros(sets.member.shape)
