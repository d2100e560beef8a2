from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from models.features import DEMAND_WIDTH
from predictor.fitted import onnx_export as exporting
from predictor.fitted.checkpoint import save
from predictor.fitted.onnx_export import export
from predictor.predictor import Predictor
from profiling.errors import InputError, UnavailableError
from profiling.workload import ColocationSet, Workload


@pytest.fixture(scope="module")
def exported(predictor: Predictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx")
    export(predictor, folder)
    return folder


def test_files_and_their_account(exported: Path) -> None:
    assert {p.name for p in exported.iterdir()} == {"encoder.onnx", "set_network_2.onnx", "export.json"}
    about = json.loads((exported / "export.json").read_text())
    for part in ("encoder", "set_network"):
        assert about[part]["largest_difference"] <= 1e-5
    assert about["features"]["edge"]


def test_exported_set_network_answers_as_the_predictor(predictor: Predictor, exported: Path) -> None:
    import onnxruntime

    jobs = [Workload("alpha", 32), Workload("beta", 32), Workload("gamma", 32)]
    sets = [ColocationSet("v100", (a, b)) for a in jobs for b in jobs]
    expected = predictor.predict_arrays(sets).slowdown
    model = predictor.fitted_.model
    variants, where = model.variants([w for s in sets for w in s.workloads], ["v100"] * (2 * len(sets)))
    from predictor.answering.job_table import setting_rows

    session = onnxruntime.InferenceSession(exported / "set_network_2.onnx")
    slowdown, ratio, utilization_residual = session.run(
        None,
        {
            "member": variants.features[where].reshape(len(sets), 2, -1).astype(np.float32),
            "demand": variants.demand[where].reshape(len(sets), 2, -1).astype(np.float32),
            "setting": setting_rows(["time-slice"] * len(sets), model.campaigns),
        },
    )
    np.testing.assert_allclose(slowdown, expected, rtol=1e-4)
    assert ratio.shape == slowdown.shape
    assert utilization_residual.shape == (len(sets),)


def test_exported_encoder_answers_as_the_predictor(predictor: Predictor, exported: Path) -> None:
    import onnxruntime

    from predictor.fitted.model import encoder_input

    model, key = predictor.fitted_.model, (Workload("delta", 32), "p100")
    graph, *rest = encoder_input([model.featurizer.job(*key)], model.featurizer)
    session = onnxruntime.InferenceSession(exported / "encoder.onnx")
    names = [i.name for i in session.get_inputs()]
    values = [graph.kind, graph.nodes, graph.edge_index, graph.edges, graph.busy_s, *rest]
    embedding, step = session.run(None, {n: v.numpy() for n, v in zip(names, values, strict=True)})
    encoding = model.encode([key])[key]
    np.testing.assert_allclose(embedding[0], encoding.embedding, atol=1e-5)
    assert step[0] == pytest.approx(encoding.step_time_s, rel=1e-4)


def test_a_file_that_disagrees_is_not_written(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(InputError, match="disagree"):
        export(predictor, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_refuses(predictor: Predictor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="1 to 8"):
        export(predictor, tmp_path, members=9)
    with pytest.raises(UnavailableError, match="not been fitted"):
        export(Predictor(), tmp_path)


def test_one_member_has_no_slowdown(predictor: Predictor) -> None:
    whole = exporting.WholeSets(predictor.fitted_.model.networks, predictor.fitted_.model.scaler).eval()
    network = predictor.fitted_.model.networks[0]
    width = len(predictor.fitted_.model.scaler.mean)
    with torch.no_grad():
        slowdown, _, utilization_residual = whole(
            torch.randn(4, 1, width),
            torch.rand(4, 1, DEMAND_WIDTH),
            torch.zeros(4, network.prior.raw.shape[0]),
        )
    assert (slowdown == 1).all()
    assert not utilization_residual.any()


def test_saved_and_exported_from_the_command_line(
    predictor: Predictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from serving.cli.main import main

    version = predictor.version
    folder = save(predictor, tmp_path / "model")
    predictor.version = version
    with pytest.raises(SystemExit) as done:
        main(
            [
                "models",
                "export",
                "--model",
                str(folder),
                "-o",
                str(tmp_path / "onnx"),
                "--members",
                "3",
                "--json",
            ]
        )
    assert not done.value.code
    result = json.loads(capsys.readouterr().out)
    assert result["set_network"]["members"] == 3
    assert (tmp_path / "onnx" / "set_network_3.onnx").is_file()


def test_the_shipped_predictor_can_be_exported(tmp_path: Path) -> None:
    from predictor.load import load_predictor

    result = export(load_predictor(), tmp_path, members=2)
    assert result["set_network"]["largest_difference"] <= exporting.TOLERANCE
    assert result["encoder"]["largest_difference"] <= exporting.TOLERANCE
