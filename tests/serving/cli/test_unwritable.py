"""An output that cannot be written is refused before the work, which may take minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import refused

TRACE = "--trace synthetic:rate=30,jobs=3 --cluster small-mixed"


@pytest.mark.parametrize(
    "command",
    [
        "profile --device cpu --job lstm-wikitext2 -o {}",
        f"compare {TRACE} -o {{}}",
        f"simulate {TRACE} --jobs {{}}/jobs.csv",
        "matrix --device v100 --job lstm-wikitext2 --plot {}/pairs.svg",
        "data import gavel nowhere -o {}",
        "report nowhere -o {}/report.html",
        "campaign plan -o {}/plan.json",
        "evaluate --data nowhere --rows {}/rows.csv",
    ],
)
def test_it_is_refused_at_once(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("profiling.measure.run.measure", lambda *_: pytest.fail("it measures"))
    (tmp_path / "file").write_text("")
    assert "cannot be a folder" in refused(capsys, *command.replace("{}", str(tmp_path / "file")).split())
