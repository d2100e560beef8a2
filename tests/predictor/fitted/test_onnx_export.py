from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.features import DEMAND_WIDTH
from predictor.fitted import onnx_export as exporting
from predictor.fitted.checkpoint import save
from predictor.fitted.onnx_export import export
from predictor.load import load_predictor
from predictor.predictor import Predictor
from profiling.errors import InputError, UnavailableError
from profiling.workload import ColocationSet, Workload
from serving.cli.main import main
from tests.predictor.synthetic import graph_source


@pytest.fixture(scope="module")
def saved(predictor: Predictor, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("saved") / "model"
    version = predictor.version
    save(predictor, folder)
    predictor.version = version
    return str(folder)


@pytest.fixture(scope="module")
def exported(saved: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once by the command, because torch takes seconds per part."""
    folder = tmp_path_factory.mktemp("onnx") / "files"
    out = io.StringIO()
    with pytest.raises(SystemExit) as done, contextlib.redirect_stdout(out):
        main(["models", "export", "--model", saved, "-o", str(folder), "--members", "2", "--json"])
    assert not done.value.code
    result = json.loads(out.getvalue())
    assert (result["folder"], result["set_network"]["members"]) == (str(folder), 2)
    return folder


def test_files_and_manifest(exported: Path) -> None:
    assert {p.name for p in exported.iterdir()} == {"encoder.onnx", "set_network_2.onnx", "export.json"}
    about = json.loads((exported / "export.json").read_text())
    for part in ("encoder", "set_network"):
        assert about[part]["largest_difference"] <= exporting.TOLERANCE == 1e-5
    assert about["process_left_out"]


def test_every_position_of_an_input_is_named(predictor: Predictor, exported: Path) -> None:
    import onnxruntime

    about = json.loads((exported / "export.json").read_text())
    sizes = {}
    for part in ("encoder", "set_network"):
        names = about["inputs"][part]
        for given in onnxruntime.InferenceSession(exported / about[part]["file"]).get_inputs():
            if given.name != "kind":  # one index each
                axis = 0 if given.name in ("edge_index", "busy_s") else -1
                sizes[given.name] = (len(names[given.name]), given.shape[axis])
    assert sizes
    assert all(named == size for named, size in sizes.values()), sizes
    assert len(about["inputs"]["encoder"]["kind"]) == predictor.fitted_.model.encoder.kind.num_embeddings
    place = about["inputs"]["set_network"]
    a, b = Workload.parse("alpha:batch_size=32,utilization_ratio=0.4"), Workload("beta", 32)
    variants, _ = predictor.fitted_.model.variants([a, b], ["v100", "p100"])
    for name, expected in (("occupancy", [0.4, 1.0]), ("gpu", [0.4, variants.demand[1, 0]])):
        assert variants.demand[:, place["demand"].index(name)].tolist() == expected
    for name, expected in (("utilization_ratio", [0.4, 0.0]), ("log_batch_size", [np.log(0.5)] * 2)):
        assert variants.features[:, place["member"].index(name)].tolist() == expected


def test_exported_slowdown_stays_below_the_limit_set_by_the_neighbour(
    predictor: Predictor, exported: Path
) -> None:
    """A neighbour that is less busy than any learned from."""
    import onnxruntime

    from predictor.answering.settings import setting_rows

    model = predictor.fitted_.model
    pair = [Workload("alpha", 32), Workload.parse("beta:batch_size=32,utilization_ratio=0.001")]
    variants, where = model.variants(pair, ["v100"] * 2)
    session = onnxruntime.InferenceSession(exported / "set_network_2.onnx")
    slowdown, *_ = session.run(
        None,
        {
            "member": variants.features[where][None].astype(np.float32),
            "demand": variants.demand[where][None].astype(np.float32),
            "setting": setting_rows(["time-slice"], model.campaigns),
        },
    )
    assert slowdown[0, 0] <= 1 / (1 - 0.001) + 1e-6


def test_exported_set_network_equals_the_predictor(predictor: Predictor, exported: Path) -> None:
    import onnxruntime

    jobs = [Workload("alpha", 32), Workload("beta", 32), Workload("gamma", 32)]
    sets = [ColocationSet("v100", (a, b)) for a in jobs for b in jobs]
    fitted = predictor.fitted_
    model = replace(fitted.model, process=None)
    networks = Predictor.of(replace(fitted, model=model), "networks", predictor.network, predictor.training)
    expected = networks.predict_arrays(sets).slowdown
    assert json.loads((exported / "export.json").read_text())["process_left_out"]
    variants, where = model.variants([w for s in sets for w in s.workloads], ["v100"] * (2 * len(sets)))
    from predictor.answering.settings import setting_rows

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


def test_exported_encoder_equals_the_predictor(predictor: Predictor, exported: Path) -> None:
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


def test_a_deviating_file_is_not_written(
    saved: str, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = (exported / "set_network_2.onnx").read_bytes()
    monkeypatch.setattr(exporting, "_to_onnx", lambda *_: file)
    changed = load_predictor(saved, graph_source)
    with torch.no_grad():
        next(changed.fitted_.model.networks[0].parameters()).add_(0.1)
    with pytest.raises(InputError, match="set network and torch disagree"):
        export(changed, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_invalid_requests_are_refused(predictor: Predictor, tmp_path: Path) -> None:
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
