from __future__ import annotations

from datasets.bundle import Bundle
from predictor.evaluation.protocols.shipped import ShippedPredictor, colocation_sets
from predictor.types import MemberPrediction, Prediction, Quantity
from profiling.workload import ColocationSet
from tests.models.baselines.test_baselines import SOLO, TRAIN

BUNDLE = Bundle("throughput_ratio", TRAIN, SOLO)


class Echo:
    """Predicts each member's solo step time and position, so that rows can be told apart."""

    def predict_many(self, sets: list[ColocationSet]) -> list[Prediction]:
        answers = []
        for asked in sets:
            members = []
            for position, job in enumerate(asked.workloads):
                q = Quantity(float(job.solo.step_time_s or 0), position, len(asked.workloads))
                members.append(MemberPrediction(str(job), q, q, q, q, q, q, True))
            total = Quantity(float(len(asked.workloads)), 0, 9)
            answers.append(
                Prediction(asked.device, asked.sharing, "echo", tuple(members), total, total, True, ())
            )
        return answers


def test_sets_keep_their_members_order_and_carry_solo_profiles() -> None:
    sets = colocation_sets(BUNDLE)
    assert list(sets) == list(dict.fromkeys(TRAIN["set_id"]))
    rows = TRAIN[TRAIN["set_id"] == "s0"]
    assert [job.model for job in sets["s0"].workloads] == rows["architecture"].tolist()
    alone = SOLO.set_index("architecture")["step_time_s"]
    assert [job.solo.step_time_s for job in sets["s0"].workloads] == [alone[a] for a in rows["architecture"]]
    for asked in colocation_sets(BUNDLE.without_solo()).values():
        assert all(job.solo.step_time_s is None for job in asked.workloads)


def test_predictions_keep_row_order() -> None:
    contender = ShippedPredictor()
    contender.predictor_ = Echo()  # type: ignore[assignment]
    alone = SOLO.set_index("architecture")["step_time_s"]
    shuffled = Bundle("throughput_ratio", TRAIN.sample(frac=1, random_state=0).sort_values("member"), SOLO)
    for bundle in (BUNDLE, shuffled):
        assert contender.predict(bundle).tolist() == [alone[a] for a in bundle.rows["architecture"]]
        lower, _ = contender.predict_interval(bundle)
        assert lower.tolist() == bundle.rows["member"].tolist()
    of_sets = Bundle("set_memory_bytes", TRAIN, SOLO)
    assert contender.predict(of_sets).tolist() == TRAIN.groupby("set_id", sort=False).size().tolist()
