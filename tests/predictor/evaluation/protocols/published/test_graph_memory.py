"""Memory of processes from their graphs, fitted to measured peaks and as shipped."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle
from predictor.evaluation.protocols.graphs import graph_of
from predictor.evaluation.protocols.published.graph_memory import (
    GraphMemoryPredictor,
    ShippedMemory,
    parts_of,
)
from predictor.fitted.device_memory import HeadCalibration
from profiling.errors import InputError

SPECS = [
    f"torchvision/{name}:batch_size={batch}"
    for name in ("resnet18", "vgg11", "squeezenet1_0", "mobilenet_v2")
    for batch in (8, 64)
]
CONTEXT = {"v100": 4e8, "t4": 3e8, "a100": 9e8}
WEIGHTS = np.array([1.1, 0.9, 1.5])


def bundle(specs: list[str], devices: tuple[str, ...]) -> Bundle:
    """Peaks that are exactly a context and weighted parts of a graph."""
    frame = pd.DataFrame({"workload": spec, "device": device} for spec in specs for device in devices)
    memory = frame["device"].map(CONTEXT).to_numpy() + parts_of(frame["workload"].tolist()) @ WEIGHTS
    frame = frame.assign(memory_bytes=memory, lower_bound_bytes=np.nan, upper_bound_bytes=np.nan)
    frame["set_id"] = frame.index.astype(str)
    return Bundle("memory_bytes", frame, frame.iloc[:0])


def test_context_and_weights_are_recovered() -> None:
    train, test = bundle(SPECS[:6], ("v100", "t4", "a100")), bundle(SPECS[6:], ("v100", "a100"))
    fitted = GraphMemoryPredictor().fit(train, 0)
    np.testing.assert_allclose(fitted.predict(test.without_targets()), test.y, rtol=1e-6)


def test_devices_without_rows_take_the_median_context_and_unknown_networks_have_no_answer() -> None:
    fitted = GraphMemoryPredictor().fit(bundle(SPECS, ("v100", "t4")), 0)
    test = bundle(["torchvision/resnet18:batch_size=8", "no-such-network:batch_size=8"], ("a100",))
    answers = fitted.predict(test.without_targets())
    assert answers[0] == pytest.approx(test.y[0] - CONTEXT["a100"] + 3.5e8, rel=1e-4)
    assert np.isnan(answers[1])


def test_without_measured_peaks_or_graphs_there_is_nothing_to_learn() -> None:
    unknown = bundle(["no-such-network:batch_size=8"], ("v100",))
    unknown.frame["memory_bytes"] = 1e9
    for train in (bundle(SPECS[:2], ("v100",)).without_targets(), unknown):
        with pytest.raises(InputError, match="nothing to learn"):
            GraphMemoryPredictor().fit(train, 0)


def test_inference_holds_parameters_and_takes_a_forward_pass() -> None:
    spec = "torchvision/resnet18:batch_size=64,mode=inference"
    (state, activations, _), graph = parts_of([spec])[0], graph_of(spec)
    assert graph is not None
    assert (state, activations) == (graph.parameter_bytes, graph.forward_activation_bytes)


def test_only_what_is_not_state_is_uncertain() -> None:
    test = bundle(["torchvision/vgg11:batch_size=8", "no-such-network:batch_size=8"], ("v100",))
    shipped = ShippedMemory().fit(test, 0)
    value, (lower, upper) = shipped.predict(test), shipped.predict_interval(test)
    state = parts_of(["torchvision/vgg11:batch_size=8"])[0, 0]
    assert state < lower[0] < value[0] < upper[0]
    factor = float(np.exp(HeadCalibration().memory_log_error[0]))
    assert (upper[0] - state) / (value[0] - state) == pytest.approx(factor)
    assert np.isnan([value[1], lower[1], upper[1]]).all()
