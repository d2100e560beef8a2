from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import pytest

from models.features import Floats
from predictor.answering.upper_ends import upper_ends_of_parts
from predictor.examples.examples import Integers
from predictor.load import load_predictor
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload

ZOO = ("resnet18-cifar", "lstm-wikitext2", "bert-base-squad", "ppo-lunarlander", "vit-base-224", "neumf-ml1m")
JOBS = [Workload(name, batch) for name in ("alpha", "beta", "gamma") for batch in (16, 32)]


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
@pytest.mark.parametrize("stated", [False, True])
def test_one_more_job_lowers_no_end_of_an_interval(sharing: str, stated: bool) -> None:
    predictor = load_predictor()
    jobs = [Workload.parse(f"{name}:step_time_s=0.1") if stated else Workload(name) for name in ZOO]
    upper, lower = {}, {}
    for count in range(2, 6):
        sets = [ColocationSet("a100-40gb", some, sharing) for some in combinations(jobs, count)]
        for asked, prediction in zip(sets, predictor.predict_many(sets), strict=True):
            for k, member in enumerate(prediction.members):
                others = asked.workloads[:k] + asked.workloads[k + 1 :]
                key = asked.workloads[k], others
                upper[key], lower[key] = member.slowdown.upper, member.slowdown.lower
    for (own, beside), most in upper.items():
        for fewer in combinations(beside, len(beside) - 1) if len(beside) > 1 else ():
            assert most >= upper[own, fewer] * (1 - 1e-6)
            assert lower[own, beside] >= lower[own, fewer] * (1 - 1e-6)


def test_pairs_have_no_parts_and_slices_share_nothing(predictor: Predictor) -> None:
    pair, triple = (ColocationSet("v100", tuple(JOBS[:count])) for count in (2, 3))
    table, intervals = predictor.table_, predictor.fitted_.intervals
    rows = predictor.rows([pair, triple])
    ends = upper_ends_of_parts(table, rows, np.array(["time-slice", "mig"]), np.ones(2), intervals)
    assert np.isneginf(ends).all()


@pytest.mark.parametrize("device", ["v100", "a100:mig=2g"])
def test_parts_of_a_set_are_computed_once(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    from predictor.answering import contention

    calls: list[int] = []

    def counted(answer: Callable[..., Floats], rows: Integers, left: Floats | None) -> Iterator[Floats]:
        calls.append(len(rows))
        return computed(answer, rows, left)

    computed = contention.parts_by_size
    monkeypatch.setattr(contention, "parts_by_size", counted)
    predictor, jobs = load_predictor(), tuple(map(Workload, ZOO))
    answer = predictor.predict(ColocationSet(device, jobs))
    assert len(calls) == 1
    predictor.predict(ColocationSet(device, jobs[:4]))
    again = predictor.predict(ColocationSet(device, jobs))
    assert len(calls) == 3, "only those of the latest sets are kept"
    assert again == answer
