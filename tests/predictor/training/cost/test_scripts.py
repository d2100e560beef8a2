from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from models.cost import CostModel, default_cost_model
from models.cost.form import HOSTS
from models.cost.job import JobInput
from predictor.training.cost.examples import CostExample
from predictor.training.cost.scripts import with_script_devices, with_script_hosts
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.workload import Workload

TRAINING = HOSTS.index("training")
# A kernel, a step, a sample: slower than what ships.
TRUE_S = (90e-6, 3e-3, 1e-5)


@cache
def one_network() -> CostModel:
    """The first of the shipped networks."""
    shipped = default_cost_model()
    return replace(shipped, campaigns=(), members=shipped.members[:1])


def examples(model_s: tuple[float, float, float]) -> list[CostExample]:
    """Steps of small jobs on a host with these costs."""
    member = dict(one_network().members[0])
    member["log_host_s"] = member["log_host_s"].copy()
    member["log_host_s"][TRAINING] = np.log(model_s)
    host = replace(one_network(), members=(member,))
    made = []
    for name in ("resnet18", "mobilenet_v2", "squeezenet1_0", "resnet50", "vgg11"):
        for batch_size in (1, 8, 64, 256):
            workload = Workload.parse(f"torchvision/{name}:batch_size={batch_size}")
            cost = host.cost(graph_for(workload), get_device("v100"), workload)
            job = _job(workload)
            made.append(CostExample(len(made), job, float(np.log(cost.step_time_s)), "lab/training"))
    return made


def _job(workload: Workload) -> JobInput:
    return JobInput.of(graph_for(workload), get_device("v100"), workload)


def test_recovers_the_host_costs_of_scripts() -> None:
    steps = examples(TRUE_S)
    model = with_script_hosts(one_network(), steps)
    answered = [model.cost_of(e.job).step_time_s for e in steps]
    np.testing.assert_allclose(answered, np.exp([e.log_s for e in steps]), rtol=0.05)
    assert np.exp(model.members[0]["log_host_s"][TRAINING])[0] == pytest.approx(TRUE_S[0], rel=0.1)


def test_an_outlier_has_little_influence() -> None:
    steps = examples(TRUE_S)
    steps[0] = replace(steps[0], log_s=steps[0].log_s + 4.0)
    launch_s = np.exp(with_script_hosts(one_network(), steps).members[0]["log_host_s"][TRAINING])[0]
    assert launch_s == pytest.approx(TRUE_S[0], rel=0.25)


def test_predictions_for_campaigns_and_other_hosts_are_unchanged() -> None:
    known = default_cost_model()
    steps = examples(TRUE_S)
    campaign = next(name for name in known.campaigns if name.startswith("miso"))
    fitted_to = [replace(steps[0], campaign=campaign)]
    model = with_script_hosts(known, steps, fitted_to)
    job = steps[0].job
    assert model.cost_of(job, campaign).step_time_s == pytest.approx(known.cost_of(job, campaign).step_time_s)
    for host in ("inference", "on_device"):
        other = replace(job, host=HOSTS.index(host))
        assert model.cost_of(other).step_time_s == pytest.approx(known.cost_of(other).step_time_s)
    assert model.cost_of(job).step_time_s > known.cost_of(job).step_time_s


def test_empty_training_data_changes_nothing() -> None:
    assert with_script_hosts(one_network(), []) is one_network()


def slowed_by(model: CostModel, difference: float) -> list[CostExample]:
    """Steps on a K80, which the shipped operators' part was not fitted to, whose efficiencies have this shift."""
    made = []
    for name in ("resnet18", "mobilenet_v2", "resnet50", "vgg11"):
        for batch_size in (8, 64, 256):
            workload = Workload.parse(f"torchvision/{name}:batch_size={batch_size}")
            job = JobInput.of(graph_for(workload), get_device("k80"), workload)
            table = np.array(model.effects(model.members[0]["device_effect"], job))
            table[:2] += difference
            slow = replace(
                model,
                members=({**model.members[0], "device_effect": table[None]},),
                devices=("k80 fp32",),
            )
            made.append(
                CostExample(len(made), job, float(np.log(slow.cost_of(job).step_time_s)), "lab/training")
            )
    return made


def without_k80() -> CostModel:
    """`one_network` before scripts measured a K80."""
    model = one_network()
    kept = [not name.startswith("k80") for name in model.devices]
    member = dict(model.members[0])
    member["device_effect"] = member["device_effect"][[*kept, True]]
    names = tuple(n for n, keep in zip(model.devices, kept, strict=True) if keep)
    return replace(model, members=(member,), devices=names)


def test_recovers_the_effect_of_a_gpu_type_that_only_scripts_measured() -> None:
    steps = slowed_by(without_k80(), -1.5)
    steps[0] = replace(steps[0], log_s=steps[0].log_s + 4.0)
    model = with_script_devices(without_k80(), steps)
    answered = [model.cost_of(e.job).step_time_s for e in steps[1:]]
    np.testing.assert_allclose(answered, np.exp([e.log_s for e in steps[1:]]), rtol=0.03)


@pytest.mark.parametrize("device", ["v100", "h100", "p4"])
def test_the_effect_of_such_a_type_changes_no_other(device: str) -> None:
    before = without_k80()
    after = with_script_devices(before, slowed_by(before, -1.5))
    workload = Workload.parse("torchvision/resnet18:batch_size=8")
    job = JobInput.of(graph_for(workload), get_device(device), workload)
    assert after.cost_of(job).step_time_s == before.cost_of(job).step_time_s


def test_a_type_that_operators_measured_keeps_its_effect() -> None:
    assert with_script_devices(one_network(), examples(TRUE_S)).devices == one_network().devices


def test_for_unmeasured_forgets_what_scripts_said_of_a_type_only() -> None:
    before = without_k80()
    after = with_script_devices(before, slowed_by(before, -1.5))
    workload = Workload.parse("torchvision/resnet18:batch_size=8")
    slow, fast = (
        m.cost(graph_for(workload), get_device("k80"), workload).step_time_s
        for m in (after, after.for_unmeasured(get_device("k80")))
    )
    assert slow > 1.5 * fast
    assert fast == before.cost(graph_for(workload), get_device("k80"), workload).step_time_s
    assert after.for_unmeasured(get_device("v100")) is after
