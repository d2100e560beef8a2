"""The command that fits the cost model."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from datasets.tables import make_table, write_table
from models.cost import default_cost_model
from models.cost.model import SHIPPED, CostModel
from predictor.training.cost import __main__ as cost_main
from predictor.training.cost.__main__ import main
from profiling.errors import ConflictError, InputError
from profiling.files import only_writer


@pytest.mark.parametrize("is_given", [True, False])
def test_coefficients_are_replaced_only_if_forced(tmp_path: Path, is_given: bool) -> None:
    out = ["--out", str(SHIPPED)] if is_given else []
    command = ["--data", str(tmp_path / "nowhere"), *out]
    with pytest.raises(InputError, match=r"coefficients has a card\.json: expected a new folder.*--force"):
        main(command)
    with pytest.raises(InputError, match="nowhere"):  # reads the tables
        main([*command, "--force"])
    with pytest.raises(InputError, match="nowhere"):
        main(["--data", str(tmp_path / "nowhere"), "-o", str(tmp_path / "new")])


@pytest.mark.parametrize("folds", ["1", "-1"])
def test_a_single_fold_is_refused_before_the_fit(
    folds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would leave no steps to learn from."""
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "new"), "--folds", folds])
    assert "--folds is out of range" in capsys.readouterr().err


def test_a_folder_that_cannot_be_is_refused_before_the_fit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be a folder"):
        main(["--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "file")])


def test_one_fit_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    command = ["--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "new")]
    with (
        only_writer(tmp_path / "new.progress"),
        pytest.raises(ConflictError, match=r"another process writes to .*new\.progress"),
    ):
        main(command)


def test_coefficients_that_appeared_meanwhile_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "tables", "solo", make_table("solo", []))
    card = tmp_path / "new" / "card.json"

    def fit(*_: object) -> CostModel:
        if not card.exists():
            card.parent.mkdir()
            card.write_text("another fit's")
        return default_cost_model()

    monkeypatch.setattr(cost_main, "cost_examples", lambda *_, **__: ([], SimpleNamespace(reasons={})))
    monkeypatch.setattr(cost_main, "fit_cost", fit)
    for name in ("with_script_devices", "with_script_hosts"):
        monkeypatch.setattr(cost_main, name, lambda model, *_: model)
    command = ["--data", str(tmp_path / "tables"), "--out", str(tmp_path / "new")]
    with pytest.raises(ConflictError, match=r"new has a new card\.json"):
        main(command)
    assert card.read_text() == "another fit's"
    assert main([*command, "--force"]) == 0
    assert CostModel.load(tmp_path / "new").devices == default_cost_model().devices
    assert {path.name for path in tmp_path.iterdir()} == {"tables", "new"}
