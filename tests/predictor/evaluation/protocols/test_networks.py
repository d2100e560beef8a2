"""E-GGAT as a contender: every target that it takes part in, from synthetic measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from datasets.bundle import Bundle
from predictor.evaluation.protocols.networks import NetworkContender, make_contender
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source, tables


@pytest.mark.parametrize(
    ("targets", "times"),
    [
        (("throughput_ratio", "set_utilization_ratio"), 1.4),
        (("set_memory_bytes",), 2.0),
        (("solo_step_time_s",), 3.0),
    ],
)
def test_answers_every_row_of_its_targets_in_the_tables_order(targets: tuple[str, ...], times: float) -> None:
    colocation, solo = tables()
    is_solo = targets[0] == "solo_step_time_s"
    frame = solo.assign(set_id=[str(k) for k in range(len(solo))]) if is_solo else colocation
    known = solo.iloc[:0] if is_solo else solo
    training = replace(TRAINING, epochs=8, encoder_steps=60)
    fitted = NetworkContender(NETWORK, training, graph_source=graph_source)
    fitted.fit(Bundle(targets[0], frame, known))
    for target in targets:
        test = Bundle(target, frame, known)
        answers = fitted.predict(test.without_targets())
        assert answers.shape == (len(test.rows),)
        points = test.points
        assert np.exp(np.abs(np.log(answers[points] / test.y[points])).mean()) < times
        shuffled = Bundle(target, frame.sample(frac=1, random_state=0), known)
        again = fitted.predict(shuffled.without_targets())
        by_row = dict(zip(test.rows["set_id"] if test.what.of_set else test.rows.index, answers, strict=True))
        rows = shuffled.rows["set_id"] if test.what.of_set else shuffled.rows.index
        np.testing.assert_allclose(again, [by_row[row] for row in rows], rtol=1e-4)


def test_ablations_change_the_configuration_by_prefix() -> None:
    changed = make_contender(width=12, encoder_layers=1, training_epochs=3)
    plain = make_contender()
    assert changed.network == replace(
        plain.network, width=12, encoder=replace(plain.network.encoder, layers=1)
    )
    assert changed.training == replace(plain.training, epochs=3)
