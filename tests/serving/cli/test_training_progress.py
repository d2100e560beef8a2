"""Progress of a training on stderr without a terminal."""

from __future__ import annotations

import pytest

from serving.cli.training_progress import StageClock, reporting, resumable


def test_lines_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting("train", 20) as report:
        for step in range(1, 11):
            report("encoder", step, 10, 1.0 / step)
        for step in range(1, 6):
            report("left out 1: network 1", step, 5, 0.5)
            report("left out 1: validation network 1", step, 5, 0.25)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 4  # begin and end of each stage
    assert lines[0].startswith("train: encoder, 1 of 10, loss 1.0000")
    assert "50 % done" in lines[1]
    assert "MAE on held-out architectures 0.250" in lines[3]
    assert "75 % done" in lines[3]


def test_time_left_ignores_work_before_a_kill() -> None:
    now = 0.0
    clock = StageClock(100, lambda: now)
    clock.note("encoder", 50)
    assert clock.left_s is None
    now = 30.0
    clock.note("encoder", 60)
    assert clock.fraction == pytest.approx(0.6)
    assert clock.left_s == pytest.approx(30.0 / 11 * 40)
    assert StageClock().left_s is None


def test_a_stopped_command_suggests_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), resumable():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "stopped; repeat the command to resume\n"
    with pytest.raises(ValueError, match="else"), resumable():
        raise ValueError("something else")
    assert capsys.readouterr().err == ""


def test_an_error_on_held_out_architectures_is_that_of_the_same_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with reporting("train") as report:
        report("left out 1: validation network 1", 5, 5, 0.25)
        report("left out 1: network 2", 1, 5, 0.5)
        report("left out 2: encoder", 1, 5, 0.5)
    lines = capsys.readouterr().err.splitlines()
    assert ["MAE" in line for line in lines] == [True, False]
