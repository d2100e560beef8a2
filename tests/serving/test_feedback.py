"""Observed step times correct later predictions at once in every process, and drop cached responses."""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, update
from structlog.testing import capture_logs
from typer.testing import CliRunner

from datasets.tables import read_table
from predictor.examples.observations import set_id_of
from predictor.fitted.fitted import Manifest
from profiling.workload import ColocationSet, Workload
from serving.cli.main import app
from serving.feedback import Feedback
from serving.handlers.upkeep import upkeep
from serving.model_life import Serving
from serving.store import Store
from serving.store.observations import read_stored
from serving.store.tables import ObservationRow, WorkloadRow
from tests.commands import refused, run
from tests.serving.conftest import Start
from tests.serving.problems import problem
from tests.serving.table import TablePredictor, TableSource
from tests.waiting import until

SLOW, OTHER = "resnet18-cifar:batch_size=32", "lstm-wikitext2"
SET = {"device": "v100", "jobs": [SLOW, OTHER]}
# Ten observations of one set are nearly believed.
EXPECTED = 1.3


def step_times(client: TestClient, asked: dict[str, Any] = SET) -> list[float]:
    answer = client.post("/v1/predict", json=asked).json()
    return [m["step_time_s"]["value"] for m in answer["members"]]


def observe(client: TestClient, factor: float = 1.3, times: int = 10, **more: Any) -> list[dict[str, Any]]:
    seen = {"of": SET, "member": 0, "step_time_s": 0.1 * factor, **more}
    answer = client.post("/v1/observations", json={"observations": [seen] * times})
    assert answer.status_code == 201
    return answer.json()["observations"]


def test_the_next_prediction_is_corrected(client: TestClient) -> None:
    alone = {"device": "v100", "jobs": [OTHER]}
    before, unrelated = step_times(client), step_times(client, alone)
    assert step_times(client) == before, "from memory"
    observe(client)
    after = step_times(client)
    assert after[0] == pytest.approx(before[0] * EXPECTED, rel=0.03)
    assert after[1] == pytest.approx(before[1], rel=0.05)
    assert step_times(client, alone) == unrelated
    elsewhere = step_times(client, {**SET, "device": "p100"})
    assert before[0] < elsewhere[0] < after[0], "observed on another device"
    batch = client.post("/v1/predict/batch", json={"sets": [SET]}).json()["predictions"][0]
    assert batch == client.post("/v1/predict", json=SET).json()
    assert any("10 observations correct its slowdown" in reason for reason in batch["reasons"])


def test_observations_are_stored_with_the_models_own_prediction(client: TestClient) -> None:
    first, second = observe(client)[0], observe(client)[0]
    assert first["predicted_step_time_s"] == second["predicted_step_time_s"]


def test_placements_are_corrected(client: TestClient) -> None:
    cluster = {"nodes": [{"name": "a", "gpus": [{"device": "v100", "id": "0"}]}]}
    body = {"job": SLOW, "iterations": 1000, "cluster": cluster}
    before = client.post("/v1/place", json=body).json()["ranked"][0]["finish_s"]
    observe(client)
    after = client.post("/v1/place", json=body).json()["ranked"][0]["finish_s"]
    assert before < after < before * EXPECTED * 1.03


def test_observations_survive_a_restart(start: Start) -> None:
    first = start()
    before = step_times(first)
    observe(first)
    assert step_times(start())[0] == pytest.approx(before[0] * EXPECTED, rel=0.03)


def test_other_processes_apply_them(start: Start) -> None:
    first, other = start(), start()
    before = step_times(other)
    observe(first)
    until(lambda: step_times(other) != before, "the other process learns")
    assert step_times(other)[0] == pytest.approx(before[0] * EXPECTED, rel=0.03)


def test_every_process_drops_deleted_observations(start: Start) -> None:
    first, other = start(), start()
    before = step_times(first)
    observe(first, observed_at=time.time() - 85 * 86_400)
    observe(first, of={"device": "p100", "jobs": [OTHER]})
    until(lambda: step_times(other) == step_times(first) != before, "the other process learns")
    third = start(retention_s=80 * 86_400)
    until(lambda: len(third.get("/v1/observations").json()["items"]) == 10, "the old ones are deleted")
    for client in (first, other, third, start()):
        until(lambda client=client: step_times(client)[0] < 1.05 * before[0], "the process forgets them")
    again = start()
    forgotten = step_times(again)
    assert step_times(first) == step_times(other) == step_times(third) == forgotten
    # A row may get the number of a deleted one.
    observe(other)
    for client in (first, other):  # The writer too, which may rest after learning anew.
        until(lambda client=client: step_times(client) != forgotten, "the process learns")
        assert step_times(client)[0] == pytest.approx(before[0] * EXPECTED, rel=0.03)


def test_observations_are_deleted_together(client: TestClient) -> None:
    """One by one, every process would relearn the rest over and over."""
    service = client.app.state.service  # type: ignore[attr-defined]
    limit = time.time() - service.config.retention_s
    for overdue_s, left in ((-600, 1), (600, 2), (1200, 3), (7200, 1)):
        with service.store.write() as session:
            session.add(row(1000 + overdue_s, observed_at=limit - overdue_s))
        upkeep(service)
        assert len(client.get("/v1/observations").json()["items"]) == left


def test_all_expired_observations_are_deleted(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are; each transaction stays short."""
    monkeypatch.setattr("serving.handlers.upkeep._AT_ONCE", 4)
    service = client.app.state.service  # type: ignore[attr-defined]
    limit = time.time() - service.config.retention_s
    with service.store.write() as session:
        session.add_all(row(1000 + k, observed_at=limit - 7100 + 600 * k) for k in range(15))
    upkeep(service)
    kept = [item["id"] for item in client.get("/v1/observations").json()["items"]]
    assert kept == [1014, 1013, 1012], "the first twelve are overdue"


def row(number: int, version: str = "table-1", observed_at: float = 1.0) -> ObservationRow:
    return ObservationRow(
        id=number, device="v100", sharing="time-slice", jobs=[SLOW], member=0, step_time_s=0.2, predicted_step_time_s=0.1,
        predicted_lower_s=0.09, predicted_upper_s=0.11, error_ratio=0.5, model_version=version,
        observed_at=observed_at,
    )  # fmt: skip


def test_every_row_counts_once(tmp_path: Any) -> None:
    """Also rows committed after one with a higher number, and rows from the time of another model."""
    store = Store(f"sqlite:///{tmp_path}/store.db")
    feedback, serving = Feedback(store), Serving(TablePredictor(), "table-1", "1", 0.0)
    belief = feedback.current(serving)
    assert belief.predictor is serving.predictor
    for numbers, total in (
        ([5, 6], 2),
        ([3], 3),
        ([], 3),
        (range(10, 610), 603),
        ([608 + 100], 604),
        ([700], 605),
    ):
        with store.write() as session:
            session.add_all(row(number, f"table-{1 + number % 2}") for number in numbers)
        feedback.refresh()
        now = feedback.current(serving)
        assert (now is belief) == (not numbers)
        belief = now
        assert len(belief.posterior) == total
    again = Feedback(store)
    again.prepare(serving)
    asked = [ColocationSet("v100", (Workload.parse(SLOW),))]
    first, second = (b.predictor.predict_arrays(asked) for b in (belief, again.current(serving)))
    assert first.step_time_s == pytest.approx(second.step_time_s)


def test_a_write_waits_neither_for_all_to_be_learned_anew_nor_does_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    feedback, serving = Feedback(store), Serving(TablePredictor(), "table-1", "1", 0.0)
    feedback.current(serving)
    with store.write() as session:
        session.add_all([row(number, observed_at=float(number)) for number in (1, 2)])
    feedback.told()
    assert len(feedback.current(serving).posterior) == 2
    with store.write() as session:
        session.execute(delete(ObservationRow).where(ObservationRow.id == 1))
    monkeypatch.setattr(feedback, "_rests_until", 0.0)
    feedback.told()
    assert len(feedback.current(serving).posterior) == 2, "left to the next poll"
    monkeypatch.setattr("serving.feedback._PATIENCE_S", 0.01)
    with feedback._reading:
        feedback.told()
    feedback.refresh()
    assert len(feedback.current(serving).posterior) == 1


def test_learning_everything_anew_does_not_make_the_service_stuck(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take a minute: longer than a lane of the store may."""
    monkeypatch.setattr("serving.service.os._exit", lambda _: None)
    client = start()
    service = client.app.state.service  # type: ignore[attr-defined]
    for lane in (service._writing, service._reading):
        monkeypatch.setattr(lane, "stuck_s", 1.0)
    with service.feedback._reading:  # as if a new model were learning
        held = time.monotonic()
        until(lambda: time.monotonic() > held + 2.5, "the next polls")
        assert client.get("/v1/health/ready").status_code == 200


def test_a_new_model_is_corrected_from_its_first_prediction(tmp_path: Any) -> None:
    """Also if the old model, in service until the swap, checks for observations in between."""
    store = Store(f"sqlite:///{tmp_path}/store.db")
    old, new = (Serving(TablePredictor(), "table-1", tag, 0.0) for tag in "12")
    feedback = Feedback(store)
    feedback.current(old)
    with store.write() as session:
        session.add_all([row(1), row(2)])
    feedback.refresh()
    kept = feedback.current(old)
    feedback.prepare(new)
    feedback.refresh()
    assert feedback.current(old) is kept, "nothing is read again for it"
    assert [len(feedback.current(serving).posterior) for serving in (old, new)] == [2, 2]


@pytest.mark.parametrize("device", ["v100", "V100"])
def test_a_model_ignores_observations_it_was_trained_on(tmp_path: Any, device: str) -> None:
    """Earlier versions stored such a set under the device's original spelling."""
    store = Store(f"sqlite:///{tmp_path}/store.db")
    with store.write() as session:
        session.add_all([row(1), row(2, "table-2"), row(3)])
    observations = [stored.observation for stored in read_stored(store)]
    set_id = set_id_of(observations[0].colocation_set).replace("v100", device)
    manifest = Manifest(("gavel/a/b", set_id))
    predictor = TablePredictor("table-2")
    predictor.fitted_ = SimpleNamespace(
        manifest=manifest, model=SimpleNamespace(featurizer=None, process=None)
    )  # type: ignore[attr-defined]
    feedback = Feedback(store)
    trained, untrained = Serving(predictor, "table-2", "2", 0.0), Serving(TablePredictor("table-3"), "table-3", "3", 0.0)  # fmt: skip
    for serving, count in ((trained, 1), (untrained, 3)):
        feedback.prepare(serving)
        belief = feedback.current(serving)
        assert len(belief.posterior) == count
        # That they ran is nothing that a model learns.
        assert [int(belief.posterior.only_ran.count.sum())] == [3 - count]
        assert belief.predictor is belief.posterior


def test_stored_observations_become_rows_for_training(tmp_path: Any, client: TestClient) -> None:
    database = client.app.state.service.config.database_url  # type: ignore[attr-defined]
    observe(client, times=3)
    alone = {"of": {"device": "v100", "jobs": [SLOW]}, "member": 0, "step_time_s": 0.1}
    assert client.post("/v1/observations", json={"observations": [alone]}).status_code == 201
    command = ["data", "export-observations", "--database", database, "--json", "-o"]
    for _ in range(2):  # again in place of the first
        answer = CliRunner().invoke(app, [*command, str(tmp_path / "tables")])
        assert answer.exit_code == 0, answer.output
        assert json.loads(answer.stdout)["observations"] == 4
    rows = read_table(tmp_path / "tables", "colocation")
    assert rows.set_id.unique().tolist() == [set_id_of(ColocationSet("v100", tuple(map(Workload.parse, (SLOW, OTHER)))))]  # fmt: skip
    (target,) = rows[rows.is_target].throughput_ratio
    assert target == pytest.approx(0.1 / 0.13)
    Store(f"sqlite:///{tmp_path}/empty.db").close()
    command[3] = f"sqlite:///{tmp_path}/empty.db"
    assert CliRunner().invoke(app, [*command, str(tmp_path / "none")]).exit_code == 1


def test_observations_of_two_services_do_not_replace_each_other(tmp_path: Path, capsys: Any) -> None:
    databases, tables = [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"], tmp_path / "tables"
    for database, job in zip(databases, (SLOW, OTHER), strict=True):
        store = Store(database)
        with store.write() as session:
            one = row(1)
            one.jobs = [job]
            session.add(one)
        store.close()

    def export(*names: str) -> tuple[int, str, str]:
        options = [part for name in names for part in ("--also", name)][1:]
        return run(capsys, "data", "export-observations", "--database", *options, "-o", tables)

    assert export(databases[0])[0] == export(databases[0])[0] == 0
    code, out, _ = export(databases[0], databases[0])
    assert (code, out.partition(":")[0]) == (0, "1 observations")
    code, _, err = export(databases[1])
    assert code == 2
    assert f"would be lost: expected observations of {databases[0]}, got {databases[1]}" in err
    assert read_table(tables, "solo").workload.tolist() == [SLOW]
    assert export(*databases)[0] == 0
    assert sorted(read_table(tables, "solo").workload) == [OTHER, SLOW]
    assert export(databases[0])[0] == 2
    (tables / "feedback-origins.json").unlink()
    code, _, err = export(databases[1])
    assert (code, "without a feedback-origins.json that says whose: they are replaced" in err) == (0, True)
    assert read_table(tables, "solo").workload.tolist() == [OTHER]


def test_a_missing_database_is_an_error_and_is_not_created(tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "nope.db"
    err = refused(capsys, "data", "export-observations", "--database", f"sqlite:///{file}", "-o", tmp_path)
    assert "no database at" in err
    assert not file.exists()


def test_observations_without_a_row_are_explained(tmp_path: Any, client: TestClient, capsys: Any) -> None:
    database = client.app.state.service.config.database_url  # type: ignore[attr-defined]
    observe(client)  # only together: the solo step time is unknown
    code, out, err = run(
        capsys, "data", "export-observations", "--database", database, "-o", tmp_path / "tables"
    )
    assert code == 1
    assert "0 rows of colocation" in out
    assert "observe each job alone" in err


def test_a_deleted_workload_is_not_predicted_from_the_cache(client: TestClient) -> None:
    entry = client.post("/v1/workloads", json={"workload": "lstm-wikitext2", "batch_size": 20}).json()
    asked = {"device": "v100", "jobs": [entry["workload"]]}
    assert client.post("/v1/predict", json=asked).status_code == 200
    assert client.delete(f"/v1/workloads/{entry['hash']}").status_code == 204
    assert client.post("/v1/predict", json=asked).status_code == 404


class GraphReader(TablePredictor):
    """Needs the graphs of registered workloads, like the real predictor."""

    def __init__(self, graphs: Any) -> None:
        super().__init__()
        self.graphs = graphs

    def predict_many(self, sets: Any) -> Any:
        for workload in {w for s in sets for w in s.workloads if w.model.startswith("graph:")}:
            self.graphs(workload)
        return super().predict_many(sets)

    def predict_arrays(self, sets: Any) -> Any:
        self.predict_many(sets)
        return super().predict_arrays(sets)


def test_observations_of_registered_workloads_apply_in_processes_that_have_not_loaded_them(
    start: Start, source: TableSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "load", lambda tag, graphs: GraphReader(graphs), raising=False)
    first, other = start(), start()
    workload = {"workload": "lstm-wikitext2", "batch_size": 20}
    entry = first.post("/v1/workloads", json=workload).json()
    alone = {"device": "v100", "jobs": [entry["workload"]]}
    observe(first, of=alone)

    def learned(client: TestClient) -> int:
        return len(client.app.state.service.belief().posterior)  # type: ignore[attr-defined]

    for client in (first, other, restarted := start()):
        until(lambda client=client: learned(client) == 10, "the process learns")
        assert step_times(client, alone)[0] == pytest.approx(0.13, rel=0.006)
    # Without the workload, a process that was there before knows no more than one that starts.
    assert first.delete(f"/v1/workloads/{entry['hash']}").status_code == 204
    for client in (first, other, restarted, start()):
        until(lambda client=client: learned(client) == 0, "the process forgets")
    assert other.post("/v1/workloads", json=workload).status_code == 201
    for client in (first, other, restarted, start()):
        until(lambda client=client: learned(client) == 10, "the process learns again")


def test_a_damaged_graph_hides_only_its_own_observations(
    start: Start, source: TableSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registering the workload again repairs it."""
    monkeypatch.setattr(source, "load", lambda tag, graphs: GraphReader(graphs), raising=False)
    first = start()
    workload = {"workload": "lstm-wikitext2", "batch_size": 20}
    entry = first.post("/v1/workloads", json=workload).json()
    damaged = {"device": "v100", "jobs": [entry["workload"]]}
    observe(first, of=damaged)
    observe(first)
    store = first.app.state.service.store  # type: ignore[attr-defined]
    with store.read() as session:
        whole = session.get(WorkloadRow, entry["hash"]).graph
    for graph in (b"{}", whole[:-9], zlib.compress(b'{"format": 1}')):
        with store.write() as session:
            session.execute(update(WorkloadRow).values(graph=graph))
        with capture_logs() as logs:
            client = start()
        assert len(client.app.state.service.belief().posterior) == 10  # type: ignore[attr-defined]
        assert [line["event"] for line in logs].count("stored graph ignored") == 1
        detail = problem(client.post("/v1/predict", json=damaged), 404)["detail"]
        assert "the stored graph is damaged" in detail
        assert "register the workload again" in detail
        assert client.get(f"/v1/workloads/{entry['hash']}/graph").status_code in (200, 404)
    assert client.post("/v1/workloads", json=workload).status_code == 200
    for each in (client, start()):
        until(lambda each=each: len(each.app.state.service.belief().posterior) == 20, "all count")
