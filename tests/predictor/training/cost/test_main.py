"""The command that fits the cost model."""

from pathlib import Path

import pytest

from models.cost.model import SHIPPED
from predictor.training.cost.__main__ import main
from profiling.errors import InputError


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


def test_a_folder_that_cannot_be_is_refused_before_the_fit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be a folder"):
        main(["--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "file")])
