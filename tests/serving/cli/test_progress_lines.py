from __future__ import annotations

import pytest

from serving.cli.output import progress
from serving.cli.progress_lines import ProgressLines


def test_a_log_gets_a_line_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with ProgressLines(lambda: now) as lines:
        task = lines.add_task("sweep", total=None)
        for done in range(1, 6):
            now += 20.0
            lines.update(task, completed=done)
        lines.update(task, description="sweep: trial 5", total=7)
        now += 30.0
        lines.update(task, advance=1)
    assert capsys.readouterr() == ("", "sweep: 2\nsweep: 4\nsweep: trial 5: 6 of 7\n")


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as bar:
        bar.update(bar.add_task("sweep", total=1), completed=1)
    assert isinstance(bar, ProgressLines)
    assert capsys.readouterr() == ("", "")
