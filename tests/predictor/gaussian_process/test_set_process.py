"""The process combined with the networks, on synthetic tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from predictor.examples.examples import Examples, examples_of
from predictor.examples.featurizer import Featurizer
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.known_members import KnownMembers, NamedMembers
from predictor.gaussian_process.members import MEMBER_GROUPS, MEMBER_WIDTH, default_scale
from predictor.gaussian_process.pair_table import PairBlocks, PairTable
from predictor.gaussian_process.prior_variance import PriorVariance
from predictor.gaussian_process.set_process import SetProcess
from predictor.gaussian_process.stored_process import from_arrays, to_arrays, to_json
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, SoloProfile, Workload
from tests.predictor.synthetic import graph_source

Tables = tuple[pd.DataFrame, pd.DataFrame]


@pytest.fixture(scope="module")
def examples(measured: Tables) -> Examples:
    return examples_of(*measured)


@pytest.fixture(scope="module")
def process(examples: Examples) -> SetProcess:
    fitted = SetProcess.fit(examples, Featurizer(graph_source))
    assert fitted is not None
    return fitted


def asked(process: SetProcess, examples: Examples) -> np.ndarray:
    """[S, M] numbers of the members of all sets."""
    keys = list(zip(examples.workloads, examples.devices, examples.mode, strict=True))
    numbers = np.array(process.numbers(keys, [0.01] * len(keys)))
    return np.where(examples.padded(np.ones(len(keys), bool)), examples.padded(numbers), -1)


def expected(process: SetProcess, examples: Examples) -> np.ndarray:
    """[S, M] expected log slowdowns if neighbours may take all of the time."""
    return np.log(process.slowdown(asked(process, examples), np.ones(1)))


def error(process: SetProcess, examples: Examples) -> float:
    off = expected(process, examples)[examples.places] + np.log(examples.ratio)
    return float(np.abs(off).mean())


def test_measured_sets_are_reproduced(process: SetProcess, examples: Examples) -> None:
    spread = np.log(examples.ratio)
    assert error(process, examples) < 0.1 * float(np.abs(spread - spread.mean()).mean())


def test_members_on_another_scale(process: SetProcess) -> None:
    """On its own scale, and where all features count twice as much or vary twice as much."""
    p, place = process.parameters, process.seen.members.place
    weights = {f"weight_{name}": 2.0 * getattr(p, f"weight_{name}") for name in MEMBER_GROUPS}
    heavier, wider = replace(p, **weights), replace(process.scale, deviation=2.0 * process.scale.deviation)
    for scale, parameters, factor in (
        (process.scale, p, 1.0),
        (process.scale, heavier, 2**0.5),
        (wider, p, 0.5),
    ):
        there = process.seen_on(scale, parameters).members.place
        np.testing.assert_allclose(there, factor * place, atol=1e-9)


def test_larger_sets_say_nothing_about_pairs(measured: Tables, examples: Examples) -> None:
    """Their members are slower than the mean of their pairs."""
    colocation, solo = measured
    first = colocation[colocation.set_id == colocation.set_id.iloc[0]]
    third = first.iloc[:1].assign(member=2)
    triple = pd.concat([first, third]).assign(set_id="triple", throughput_ratio=0.1, set_memory_bytes=9e9)
    both = examples_of(pd.concat([colocation, triple], ignore_index=True), solo)
    featurizer = Featurizer(graph_source)
    without, with_triple = (SetProcess.fit(e, featurizer) for e in (examples, both))
    assert without is not None
    assert with_triple is not None
    np.testing.assert_allclose(expected(with_triple, examples), expected(without, examples))


def test_no_job_is_faster_beside_others_than_alone(process: SetProcess, examples: Examples) -> None:
    pairs = asked(process, examples)[:5]
    alone = np.where(np.arange(2) > 0, -1, pairs)
    assert (process.slowdown(pairs, np.ones(1)) > 1).all()
    assert np.isnan(process.slowdown(alone, np.ones(1))).all()
    assert not process.blended(np.zeros((5, 2)), alone, np.ones((5, 2))).any()


def test_the_network_alone_predicts_sets_of_three_or_more(process: SetProcess, examples: Examples) -> None:
    pairs = asked(process, examples)[:5]
    three = np.concatenate([pairs, pairs[:, :1]], 1)
    mixed = np.concatenate([three, np.where(np.arange(3) > 1, -1, three)])
    slowdown = process.slowdown(mixed, np.ones((10, 3)))
    assert np.isnan(slowdown[:5]).all()
    np.testing.assert_array_equal(slowdown[5:, :2], process.slowdown(pairs, np.ones((5, 2))))
    excess = np.full((5, 3), 0.7)
    np.testing.assert_array_equal(process.blended(excess, three, np.ones((5, 3))), excess)


def test_neighbours_leave_a_member_the_rest_of_the_time(process: SetProcess, examples: Examples) -> None:
    numbers = asked(process, examples)
    assert expected(process, examples).max() > np.log(1.25)
    occupied = np.full(numbers.shape, 0.2)
    assert process.slowdown(numbers, occupied).max() == pytest.approx(1.25)
    assert process.blended(np.zeros(numbers.shape), numbers, occupied).max() == pytest.approx(
        np.sqrt(1.25) - 1
    )


def test_the_combination_is_the_mean_of_logs(process: SetProcess, examples: Examples) -> None:
    numbers = asked(process, examples)
    rng = np.random.default_rng(0)
    excess, occupied = rng.random(numbers.shape), rng.random(numbers.shape)
    mean = (np.log1p(excess) + np.log(process.slowdown(numbers, occupied))) / 2
    np.testing.assert_allclose(np.log1p(process.blended(excess, numbers, occupied)), mean, atol=1e-12)


def test_too_few_sets_give_no_process(examples: Examples) -> None:
    assert SetProcess.fit(examples.subset(examples.set_ids[:2]), Featurizer(graph_source)) is None


def test_the_network_alone_predicts_unmeasured_devices_and_modes(examples: Examples) -> None:
    featurizer = Featurizer(graph_source)
    process = SetProcess.fit(examples, featurizer)
    without = SetProcess.fit(_without_utilization(examples), featurizer)
    assert process is not None
    assert without is not None
    excess, free = np.full((1, 2), 0.3), np.ones((1, 2))

    def answers(process: SetProcess, device: str, sharing: str, utilization_ratio: float | None) -> bool:
        solo = SoloProfile(step_time_s=0.01, utilization_ratio=utilization_ratio)
        pair = [Workload(model, batch_size=32, solo=solo) for model in ("alpha", "beta")]
        numbers = np.array([process.numbers([(w, device, sharing) for w in pair], [0.01, 0.01])])
        expected, blend = process.slowdown(numbers, free), process.blended(excess, numbers, free)
        assert np.isnan(expected).all() == np.array_equal(blend, excess)
        return not np.isnan(expected).any()

    assert answers(process, "v100", "time-slice", 0.5)
    assert not answers(process, "v100", "mps", 0.5)
    assert not answers(process, "t4", "time-slice", 0.5)
    assert answers(without, "v100", "time-slice", None)
    assert not answers(without, "v100", "time-slice", 0.5)


def _without_utilization(examples: Examples) -> Examples:
    return replace(
        examples,
        workloads=tuple(replace(w, solo=replace(w.solo, utilization_ratio=None)) for w in examples.workloads),
    )


def test_further_sets_are_learned_and_earlier_ones_kept(examples: Examples) -> None:
    old = [s for s in examples.set_ids if "gamma" not in s]
    new = examples.subset([s for s in examples.set_ids if "gamma" in s])
    before = SetProcess.fit(examples.subset(old), Featurizer(graph_source))
    assert before is not None
    after = before.with_sets(new)
    assert error(after, new) < 0.5 * error(before, new)
    assert error(after, examples.subset(old)) < error(before, new)
    assert before.with_sets(new.subset([])) is before


def test_a_stored_process_gives_equal_predictions_and_holds_no_measurement(
    process: SetProcess, examples: Examples
) -> None:
    arrays = to_arrays(process)
    again = from_arrays(arrays, to_json(process), Featurizer(graph_source))
    np.testing.assert_array_equal(expected(again, examples), expected(process, examples))
    measured = np.concatenate([examples.ratio, -np.log(examples.ratio)])
    assert not any(np.isin(values, measured).any() for values in arrays.values())
    with pytest.raises(ValueError, match="fit together"):
        from_arrays(arrays | {"weight": arrays["weight"][1:]}, to_json(process), Featurizer(graph_source))


def test_bounded_blocks_give_equal_predictions(
    process: SetProcess, examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, whole = asked(process, examples), expected(process, examples)
    monkeypatch.setattr("predictor.gaussian_process.pair_table._KEPT", 3)
    blocks = PairBlocks(process.weights, process._slowdown_of, alone=np.nan)
    few = np.concatenate([blocks.of_sets(process.members, row[None]) for row in numbers])
    np.testing.assert_allclose(np.log(few), whole)


def test_a_call_with_many_members_makes_no_block_of_them_all(
    process: SetProcess, examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, whole = asked(process, examples), expected(process, examples)
    sizes = []

    def counted(means: PairTable) -> PairTable:
        class Counted:
            def table(self, own: Members, partners: Members) -> np.ndarray:
                sizes.append(max(len(own), len(partners)))
                return means.table(own, partners)

        return Counted()

    monkeypatch.setattr("predictor.gaussian_process.pair_table._KEPT", 3)
    blocks = PairBlocks(counted(process.weights), process._slowdown_of, alone=np.nan)
    np.testing.assert_allclose(np.log(blocks.of_sets(process.members, numbers)), whole)
    variance = PriorVariance(process.parameters)
    variance._together.means = counted(variance._together.means)
    one, other = numbers.T
    between = variance.between(process.members, one, other)
    alone = [variance.between(process.members, *row[:, None]) for row in numbers]
    np.testing.assert_allclose(between, np.concatenate(alone))
    assert max(sizes) <= 3


def test_all_prediction_methods_combine_both(predictor: Predictor, measured: Tables) -> None:
    examples, model = examples_of(*measured), predictor.fitted_.model
    assert model.process is not None
    sets = [
        ColocationSet(part.devices[0], part.workloads, part.mode[0])
        for part in (examples.subset([set_id]) for set_id in examples.set_ids)
    ]

    def answers(asked: Predictor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ratio, latent = asked.fitted_.model.predict_log_ratio(examples)
        return ratio, latent, np.log(asked.predict_arrays(sets).slowdown)

    fitted = predictor.fitted_
    networks = Predictor.of(
        replace(fitted, model=replace(model, process=None)), "networks", predictor.network, predictor.training
    )
    blended, (ratio, latent, slowdown) = answers(predictor), answers(networks)
    said = 2 * blended[1] - latent
    np.testing.assert_allclose(2 * blended[0] - ratio, -said)
    np.testing.assert_allclose((2 * blended[2] - slowdown)[examples.places], said, atol=1e-6)
    assert (said <= expected(model.process, examples)[examples.places] + 1e-12).all()
    one_by_one = [prediction.members[0].slowdown.value for prediction in predictor.predict_many(sets)]
    np.testing.assert_allclose(np.log(one_by_one), blended[2][:, 0])


def test_a_measured_job_is_recognised_in_every_spelling() -> None:
    measured = Workload.parse("lstm-wikitext2:batch_size=20")
    nobody = Members(np.zeros((1, MEMBER_WIDTH + 1)), *np.zeros((3, 1), np.int64))
    seen = NamedMembers(nobody, ("lstm-wikitext2",), (measured,), (("v100", "time-slice"),))
    known = KnownMembers(KernelParameters(), default_scale(), None, seen)
    spelled = (
        "lstm-wikitext2",
        "lstm-wikitext2:batch_size=20,optimizer=sgd",
        "LSTM:step_time_s=0.1",
        str(measured),
    )
    keys = [
        (Workload.parse(spec), "v100", "time-slice") for spec in (*spelled, "lstm-wikitext2:batch_size=40")
    ]
    numbers = known.numbers(keys, [0.1] * len(keys))
    assert known.members.job[numbers].tolist() == [0, 0, 0, 0, 1]
    assert known.members.model[numbers].tolist() == [0] * 5
