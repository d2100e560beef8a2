from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.examples.examples import examples_of
from predictor.examples.featurizer import Featurizer, shared_featurizer
from predictor.fitted.device_memory import (
    HeadCalibration,
    member_memory_bytes,
    process_bytes,
    set_memory_bytes,
    set_utilization_ratio,
)
from predictor.training.heads import fit_heads
from profiling.capture import graph_for
from profiling.errors import InputError, UnknownNameError
from profiling.workload import SoloProfile, Workload
from tests.predictor.synthetic import MODELS, graph_source

FEATURIZER = Featurizer(graph_source)


@given(
    model=st.sampled_from(sorted(MODELS)),
    batch=st.integers(1, 256),
    frozen=st.integers(0, 2),
    device=st.sampled_from(["v100", "cpu"]),
)
def test_memory_is_at_least_the_state(model: str, batch: int, frozen: int, device: str) -> None:
    job = FEATURIZER.job(Workload(model, batch, frozen_prefix=frozen), device)
    graph = job.graph
    memory = member_memory_bytes(job, SoloProfile(), HeadCalibration())
    assert memory >= job.demand.state_bytes >= graph.parameter_bytes
    if not frozen:
        assert memory >= graph.state_bytes
    whole = FEATURIZER.job(Workload(model, batch), device)
    assert memory <= member_memory_bytes(whole, SoloProfile(), HeadCalibration())


def test_measured_memory_is_used_as_is() -> None:
    job = FEATURIZER.job(Workload("alpha"), "v100")
    assert member_memory_bytes(job, SoloProfile(memory_bytes=7e9), HeadCalibration()) == 7e9


def test_memory_is_context_workspace_state_and_activations() -> None:
    calibration, job = HeadCalibration(), FEATURIZER.job(Workload("beta"), "v100")
    rest = job.demand.state_bytes + calibration.activation_factor * job.demand.activation_bytes
    whole = member_memory_bytes(job, SoloProfile(), calibration)
    largest = max(op.bytes_read + op.bytes_written for op in job.graph.operators)
    workspace = calibration.workspace_factor * largest
    context = calibration.context_bytes + 80 * 2048 * calibration.context_bytes_per_thread
    assert whole - rest == pytest.approx(context + workspace)
    # Libraries take no more than so much, and those of old cards hold fewer kernels.
    big = FEATURIZER.job(Workload("beta", 4096), "k80")
    rest = big.demand.state_bytes + calibration.activation_factor * big.demand.activation_bytes
    whole = member_memory_bytes(big, SoloProfile(), calibration)
    assert whole - rest == pytest.approx(calibration.old_context_bytes + calibration.workspace_bytes)


def test_half_precision_has_its_own_constants() -> None:
    calibration = HeadCalibration(context_bytes=0.0, context_bytes_per_thread=0.0)
    job = FEATURIZER.job(Workload("beta", precision="amp"), "v100")
    largest = max(op.bytes_read + op.bytes_written for op in job.graph.operators)
    expected = (
        job.demand.state_bytes
        + calibration.half_activation_factor * job.demand.activation_bytes
        + calibration.half_workspace_factor * largest
    )
    assert member_memory_bytes(job, SoloProfile(), calibration) == pytest.approx(expected)


@pytest.mark.parametrize(("optimizer", "tensors"), [("sgd", 0), ("adamw", 1), ("adagrad", 2)])
def test_large_networks_peak_while_the_optimizer_steps(optimizer: str, tensors: int) -> None:
    calibration = HeadCalibration()

    def beyond_state(device: str, **options: Any) -> float:
        workload = Workload("gpt-1.3b", 1, optimizer=optimizer, **options)
        job = shared_featurizer().job(workload, device)
        whole = member_memory_bytes(job, SoloProfile(), calibration)
        return whole - process_bytes(job, calibration) - job.demand.state_bytes

    graph = graph_for(Workload("gpt-1.3b", 1))
    activation_bytes = calibration.activation_factor * graph.activation_bytes
    assert beyond_state("a100") == pytest.approx(max(activation_bytes, tensors * graph.parameter_bytes))
    # A CPU's optimiser updates one tensor at a time.
    assert beyond_state("cpu") == pytest.approx(graph.activation_bytes)
    # Only trained layers are updated.
    frozen = beyond_state("a100", frozen_prefix=len(graph.layers))
    assert frozen < activation_bytes


def test_memory_of_a_set_adds_up() -> None:
    calibration = HeadCalibration(sharing_bytes=10.0)
    sets = np.array([[100.0, 0, 0], [100, 200, 0], [100, 200, 300]])
    assert set_memory_bytes(sets, calibration).tolist() == [100, 310, 620]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.floats(-1, 1))
def test_utilization_of_a_set_is_a_ratio_and_grows_with_members(busy: list[float], learned: float) -> None:
    values = [
        float(set_utilization_ratio(np.array([busy[:k]]), np.array([learned]))[0])
        for k in range(1, len(busy) + 1)
    ]
    assert all(0 <= v <= 1 for v in values)
    assert values == sorted(values)


def test_calibration_recovers_the_constants(measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    heads = fit_heads(examples_of(*measured), measured[1], Featurizer(graph_source))
    assert heads.sharing_bytes == pytest.approx(3.02e9 - 2 * 1.5e9)


def test_large_sets_that_save_memory_leave_small_ones_their_largest_member(
    measured: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    colocation, solo = measured
    solo = solo.assign(memory_bytes=np.where(solo.device == "v100", 15e9, 1e8))
    sets = colocation.assign(set_memory_bytes=np.where(colocation.device == "v100", 28.5e9, 2e8))
    heads = fit_heads(examples_of(sets, solo), solo, Featurizer(graph_source))
    assert heads.sharing_bytes == pytest.approx(-0.75e9), "1.5 GB less in half of the sets"
    assert heads.memory_log_error[1] == pytest.approx(np.log(2))
    members = np.array([[1e8, 1e8, 0.0], [1e8, 0.0, 0.0], [15e9, 15e9, 0.0]])
    assert set_memory_bytes(members, heads) == pytest.approx([1e8, 1e8, 29.25e9])


def test_activations_are_calibrated_by_jobs_whose_optimizer_allocates_less(
    measured: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    colocation, solo = measured
    bare = colocation.assign(set_memory_bytes=np.nan, set_utilization_ratio=np.nan)
    start, featurizer = HeadCalibration(), shared_featurizer()
    specs = [f"roberta-large-qnli:batch_size={size}" for size in (1, 2, 3)] * 3
    peaks = [
        member_memory_bytes(featurizer.job(Workload.parse(s), "v100"), SoloProfile(), start) for s in specs
    ]
    rows = pd.concat([solo.head(1)] * len(specs), ignore_index=True)
    rows = rows.assign(workload=specs, device="v100", gpus=1, memory_bytes=peaks)
    assert fit_heads(examples_of(bare, solo), rows, featurizer).activation_factor == start.activation_factor


def test_defaults_without_measurements(measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    colocation, solo = measured
    empty = colocation.assign(set_memory_bytes=np.nan, set_utilization_ratio=np.nan)
    bare = solo.assign(memory_bytes=np.nan, utilization_ratio=np.nan)
    assert fit_heads(examples_of(empty, bare), bare, Featurizer(graph_source)) == HeadCalibration()


def test_unknown_names_and_too_long_prefixes_are_rejected() -> None:
    with pytest.raises(UnknownNameError, match="alpha"):
        FEATURIZER.job(Workload("omega"), "v100")
    with pytest.raises(UnknownNameError):
        FEATURIZER.job(Workload("alpha"), "abacus")
    with pytest.raises(InputError, match="from 0 to 2"):
        FEATURIZER.job(Workload("alpha", frozen_prefix=3), "v100")
