"""What the co-location network learns from besides measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.colocation_network import NetworkConfig
from models.features import DEVICE_FEATURES, SOLO_FEATURES, WORKLOAD_FEATURES, device_features
from predictor.examples.examples import examples_of
from predictor.examples.featurizer import Featurizer
from predictor.training.fit import solo_examples
from predictor.training.networks import fit
from predictor.training.targets import TrainingBatches
from predictor.training.teachers import processor_sharing
from predictor.training.teachers.processor_sharing import inferred_sets, sharing_log_ratio, stated_sets
from profiling.devices import get_device
from profiling.workload import SHARING_MODES, SoloProfile
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source


def with_memory(examples, taken_together: float):
    """The same sets, with 1 GB for every member alone and `taken_together` for the set."""
    workloads = tuple(replace(w, solo=replace(w.solo, memory_bytes=1e9)) for w in examples.workloads)
    return replace(
        examples,
        workloads=workloads,
        set_memory_bytes=np.full(len(examples.set_ids), taken_together),
    )


@pytest.fixture(scope="module")
def examples(measured):
    return examples_of(*measured)


def test_sets_with_a_member_not_resident_are_not_trained_on(examples):
    assert examples.resident.all()
    assert with_memory(examples, 2e9).resident.all()
    assert not with_memory(examples, 1e9).resident.any()


@pytest.mark.parametrize("invent", [stated_sets, inferred_sets])
def test_synthetic_sets_cover_other_gpus_and_use_processor_sharing(examples, measured, invent):
    config = replace(TRAINING, encoder_steps=1, epochs=1, mixed_sets=0)
    model = fit(examples, solo_examples(measured[1]), Featurizer(graph_source), NETWORK, config)
    shared = invent(model, examples, 50, seed=3)
    sizes = np.bincount(shared.set_index)
    assert len(sizes) == 50
    assert set(sizes) <= {2, 3, 4}
    known = {d for _, d in model.encode([])} - set(examples.devices)
    assert known
    assert all(get_device(d).compute_capability for d in known)
    ratio = np.exp(sharing_log_ratio(shared))
    for number in range(50):
        members = shared.set_index == number
        asked = shared.busy_ratio[members].sum()
        assert np.allclose(ratio[members], 1 / max(asked, 1.0))


def test_without_a_measured_utilisation_only_unmeasured_gpus_are_invented(examples, measured):
    config = replace(TRAINING, encoder_steps=1, epochs=1, mixed_sets=0)
    model = fit(examples, solo_examples(measured[1]), Featurizer(graph_source), NETWORK, config)
    shared = inferred_sets(model, examples, 200, seed=3)
    flags = [
        shared.features[:, model.config.encoder.embedding :][
            :, len(WORKLOAD_FEATURES) + SOLO_FEATURES.index(n)
        ]
        for n in ("has_step_time", "has_utilization")
    ]
    assert 0.2 < flags[0].mean() < 0.6
    assert not flags[1].any()
    measured_on = [device_features(get_device(d)) for d in set(examples.devices)]
    for row in shared.features[:, -len(DEVICE_FEATURES) :]:
        assert not any(np.allclose(row, device) for device in measured_on)


def test_one_batch_of_synthetic_pairs_per_epoch(examples, measured):
    config = replace(TRAINING, encoder_steps=1, epochs=1, mixed_sets=30, synthetic_batches=2, shared_sets=10)
    model = fit(examples, solo_examples(measured[1]), Featurizer(graph_source), NETWORK, config)
    batches = TrainingBatches(model, examples, config)
    first, second, third = (batches.of(epoch)[-1].sets.member for epoch in range(3))
    assert torch.equal(first, third)
    assert not torch.equal(first, second)
    assert len(batches.of(0)) == 4
    assert (
        TrainingBatches(model, examples, replace(config, mixed_sets=0, shared_sets=0)).synthetic_batches == []
    )


def test_a_known_utilisation_on_an_unknown_gpu_follows_processor_sharing(examples, measured):
    config = replace(TRAINING, encoder_steps=1, epochs=150, mixed_sets=0, shared_sets=400)
    model = fit(
        examples, solo_examples(measured[1]), Featurizer(graph_source), NetworkConfig(width=16), config
    )
    idle, busy = (
        replace(
            with_memory(examples, np.nan),
            devices=("rtx-3090",) * len(examples.devices),
            campaign=("elsewhere",) * len(examples.devices),
            workloads=tuple(
                replace(w, solo=replace(w.solo, utilization_ratio=u, memory_bytes=None))
                for w in examples.workloads
            ),
        )
        for u in (0.2, 0.95)
    )
    light, heavy = (np.exp(-model.predict_log_ratio(e)[1]).mean() for e in (idle, busy))
    assert light > 0.85
    assert heavy < 0.7


def test_a_long_step_time_on_an_unknown_gpu_leaves_time_to_others(examples, measured):
    config = replace(TRAINING, encoder_steps=1, epochs=150, mixed_sets=0, inferred_sets=600)
    model = fit(
        examples, solo_examples(measured[1]), Featurizer(graph_source), NetworkConfig(width=16), config
    )

    def timed(busy: float):
        devices = ("rtx-3090",) * len(examples.devices)
        return replace(
            examples,
            devices=devices,
            campaign=("elsewhere",) * len(devices),
            workloads=tuple(
                replace(
                    w, solo=SoloProfile(step_time_s=model.featurizer.job(w, "rtx-3090").demand.busy_s / busy)
                )
                for w in examples.workloads
            ),
        )

    light, heavy = (np.exp(-model.predict_log_ratio(timed(busy))[1]).mean() for busy in (0.2, 0.95))
    assert light > 0.85
    assert heavy < 0.7


def test_in_training_campaigns_the_forest_answers_for_unmeasured_gpus(examples, measured):
    config = replace(
        TRAINING, encoder_steps=1, epochs=1, mixed_sets=30, synthetic_batches=2, inferred_sets=60
    )
    model = fit(examples, solo_examples(measured[1]), Featurizer(graph_source), NETWORK, config)
    batches = TrainingBatches(model, examples, config)
    nowhere, somewhere = batches.always[-2:]
    assert nowhere.sets.setting[:, -1].all()
    assert not somewhere.sets.setting[:, -1].any()
    assert somewhere.sets.setting[:, len(SHARING_MODES) :].sum(1).eq(1).all()
    assert somewhere.sets.present.sum(1).eq(2).all()
    assert len(TrainingBatches(model, examples, replace(config, mixed_sets=0)).always) == 3


def test_a_gpu_type_with_a_measured_slice_is_not_unmeasured(examples, measured, monkeypatch):
    monkeypatch.setattr(processor_sharing, "UNMEASURED_GPUS", 1000)
    config = replace(TRAINING, encoder_steps=1, epochs=1, mixed_sets=0)
    model = fit(examples, solo_examples(measured[1]), Featurizer(graph_source), NETWORK, config)
    on_slices = replace(examples, devices=("a100:mig=3g",) * len(examples.devices))
    before = {d for _, d in model.encode([])}
    inferred_sets(model, on_slices, 20, seed=1)
    assert "a100" not in {d for _, d in model.encode([])} - before
