"""What holds for every answer of the shipped predictor: random sets of jobs, devices, options and sharing modes."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from predictor import load_predictor
from predictor.predictor import Predictor
from predictor.types import QUANTITIES
from profiling.workload import ColocationSet, SoloProfile, Workload

NAMES = ("resnet18-cifar", "lstm-wikitext2", "torchvision/resnet50", "hf/bert-base", "timm/mobilenetv2_100")
DEVICES = ("k80", "v100", "a100", "h100", "rtx-5090", "mi300x", "cpu", "a100:mig=2g")
OPTIONS = (
    {"batch_size": 2},
    {"batch_size": 32},
    {"mode": "inference"},
    {"frozen_prefix": 3},
    {"sm_share_ratio": 0.3},
    {"sm_share_ratio": 0.01},
    {"data_on_device": True},
    {"compiler": "compile"},
)
SOLO = (
    SoloProfile(0.05),
    SoloProfile(0.05, 3e9, 0.3),
    SoloProfile(None, None, 1.0, 0.5),
    SoloProfile(0.5, None, 0.0),
)
# Sums of 32-bit numbers in another order.
ROUNDING = 2e-5


@cache
def shipped() -> Predictor:
    return load_predictor("default")


def drawn(seed: int) -> ColocationSet:
    draw = random.Random(seed)
    sharing = draw.choice(["time-slice", "mps", "mps"])

    def job() -> Workload:
        made = Workload(draw.choice(NAMES))
        for options in draw.sample(OPTIONS, draw.randrange(3)):
            made = replace(made, **options)  # type: ignore[arg-type]
        return replace(made, solo=draw.choice(SOLO)) if draw.random() < 0.4 else made

    jobs = [job() for _ in range(draw.choice([1, 2, 2, 3, 4]))]
    if len(jobs) > 2:
        jobs[1] = jobs[0]
    return ColocationSet(draw.choice(DEVICES), tuple(jobs), sharing)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_answers_are_consistent(first: int) -> None:
    predictor = shipped()
    for asked in map(drawn, range(first, first + 10)):
        arrays, answer = predictor.predict_arrays([asked]), predictor.predict(asked)
        slowdown, jobs = arrays.slowdown[0], asked.workloads
        assert (slowdown >= 1).all(), asked
        for k, member in enumerate(answer.members):
            for name in QUANTITIES:
                quantity = getattr(member, name)
                assert quantity.lower <= quantity.value <= quantity.upper < np.inf, (asked, name)
            assert member.step_time_s.value == pytest.approx(arrays.step_time_s[0, k], rel=ROUNDING)
            assert member.solo_step_time_s.value * slowdown[k] == pytest.approx(
                member.step_time_s.value, rel=ROUNDING
            )
            assert 0 <= member.utilization_ratio.value <= 1
            assert (jobs.index(jobs[k]) == k) or slowdown[k] == pytest.approx(
                slowdown[jobs.index(jobs[k])], rel=ROUNDING
            )
        assert answer.fits == bool(arrays.fits[0])
        if asked.sharing == "time-slice":
            assert sum(m.utilization_ratio.value for m in answer.members) <= 1 + 1e-9
        turned = predictor.predict_arrays([replace(asked, workloads=jobs[::-1])])
        np.testing.assert_allclose(turned.slowdown[0, ::-1], slowdown, rtol=ROUNDING, err_msg=str(asked))
        assert turned.fits[0] == arrays.fits[0]


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_one_more_job_costs_time_and_memory(first: int) -> None:
    predictor = shipped()
    for asked in map(drawn, range(first, first + 10)):
        whole, jobs = predictor.predict_arrays([asked]), asked.workloads
        for gone in range(len(jobs) if len(jobs) > 1 else 0):
            rest = [k for k in range(len(jobs)) if k != gone]
            fewer = predictor.predict_arrays([replace(asked, workloads=tuple(jobs[k] for k in rest))])
            assert (whole.step_time_s[0, rest] >= fewer.step_time_s[0] * (1 - ROUNDING)).all(), (asked, gone)
            assert whole.memory_upper_bytes[0] >= fewer.memory_upper_bytes[0], (asked, gone)
            assert fewer.fits[0] >= whole.fits[0], (asked, gone)


@pytest.mark.parametrize("device", DEVICES)
def test_nearly_all_of_the_multiprocessors_are_all_of_them(device: str) -> None:
    jobs = (Workload("lstm-wikitext2", solo=SoloProfile(0.05, None, 0.3)), Workload("resnet18-cifar"))
    sets = [
        ColocationSet(device, tuple(replace(job, sm_share_ratio=share) for job in jobs), "mps")
        for share in (1.0, 1 - 1e-9)
    ]
    arrays = shipped().predict_arrays(sets)
    for values in (arrays.step_time_s, arrays.slowdown, arrays.utilization_ratio, arrays.memory_bytes):
        np.testing.assert_allclose(values[1], values[0], rtol=1e-5)


@pytest.mark.parametrize("device", ["p4", "v100", "a100"])
@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
def test_limiting_one_of_three_makes_no_other_slower(device: str, sharing: str) -> None:
    others = tuple(
        map(Workload.parse, ("resnet18-cifar:sm_share_ratio=0.14", "torchvision/resnet50:batch_size=8"))
    )
    sets = [
        ColocationSet(device, (*others, Workload("hf/bert-base", 8, sm_share_ratio=share)), sharing)
        for share in (1.0, 0.9, 0.5, 0.14, 0.05)
    ]
    step_s = shipped().predict_arrays(sets).step_time_s
    assert (np.diff(step_s[:, :2], axis=0) <= step_s[:-1, :2] * ROUNDING).all()
    assert (np.diff(step_s[:, 2]) >= 0).all()
