from __future__ import annotations

import json
import multiprocessing
import pickle
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from predictor.config import TrainingConfig
from predictor.training.progress import Progress, fingerprint
from tests.once import made_once
from tests.predictor.synthetic import NETWORK, TRAINING, tables
from tests.predictor.training import killed_training
from tests.predictor.training.killed_training import CONFIG, progress_of, train
from tests.waiting import LONG_S

FILES = ("weights.safetensors", "config.json", "manifest.json")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """The killed process has one thread, too: another order of summation changes the last bits."""
    torch.set_num_threads(1)


def _train(folder: Path) -> None:
    losses = train(folder / "model").losses
    (folder / "losses.json").write_text(json.dumps(losses))


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[Path, dict[str, list[float]]]:
    folder = made_once("uninterrupted", _train)
    return folder / "model", json.loads((folder / "losses.json").read_text())


def killed(out: Path, phase: str, step: int) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([killed_training.__name__])
    child = context.Process(target=killed_training.train_until, args=(out, phase, step))
    child.start()
    child.join(LONG_S)
    assert child.exitcode == -signal.SIGKILL
    assert not out.exists()


class Stopped(Exception):
    pass


def steps_until(
    out: Path,
    stop: tuple[str, int] | None = None,
    progress: Progress | None = None,
    config: TrainingConfig = CONFIG,
) -> list[tuple[str, int]]:
    """The phases and steps that a training reports until it is stopped at `stop`, or at its first step."""
    done: list[tuple[str, int]] = []

    def report(phase: str, step: int, steps: int, loss: float) -> None:
        done.append((phase, step))
        if stop in (None, (phase, step)):
            raise Stopped

    with pytest.raises(Stopped):
        train(out, report, config, progress)
    return done


@pytest.mark.parametrize(
    ("phase", "step"), [("encoder", 4), ("network 2", 3), ("left out 2: network 1", 5)], ids=lambda v: str(v)
)
def test_a_killed_training_resumes_to_identical_weights(
    uninterrupted: tuple[Path, dict[str, list[float]]], tmp_path: Path, phase: str, step: int
) -> None:
    out = tmp_path / "model"
    killed(out, phase, step)
    done: list[tuple[str, int]] = []
    progress = train(out, lambda phase, step, steps, loss: done.append((phase, step)))
    # It goes on at the step at which it was killed: nothing before that is done twice.
    assert done[0] == (phase, step)
    assert len(done) == len(set(done))
    assert progress.resumed
    for name in FILES:
        assert (out / name).read_bytes() == (uninterrupted[0] / name).read_bytes(), name
    assert progress.losses == uninterrupted[1]


def test_nothing_is_pickled_and_files_are_complete(tmp_path: Path) -> None:
    out = tmp_path / "model"
    killed(out, "network 1", 2)
    kept = sorted((tmp_path / "model.progress").iterdir())
    assert [p.name for p in kept] == ["encoder.safetensors", "network-1.safetensors"]
    for file in kept:
        with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, KeyError, IndexError)):
            pickle.loads(file.read_bytes())
        with safe_open(file, framework="pt") as opened:
            assert json.loads(opened.metadata()["about"])["fingerprint"]
    # A file that is damaged all the same costs its stage and nothing else.
    kept[1].write_bytes(kept[1].read_bytes()[:100])
    assert steps_until(out) == [("network 1", 1)]


def test_a_stage_without_a_saved_state_restarts(tmp_path: Path) -> None:
    out = tmp_path / "model"
    assert ("network 1", 6) in steps_until(out, ("network 2", 4), progress_of(out, every_s=1e9))
    assert steps_until(out, progress=progress_of(out, every_s=1e9)) == [("network 2", 1)]


def test_another_configuration_starts_over(tmp_path: Path) -> None:
    out, changed = tmp_path / "model", replace(CONFIG, weight_decay=0.5)
    steps_until(out, ("network 1", 1), progress_of(out, every_s=1e9))
    other = progress_of(out, changed, 1e9)
    assert steps_until(out, progress=other, config=changed) == [("encoder", 1)]
    assert not other.resumed
    same = progress_of(out, every_s=1e9)
    assert steps_until(out, progress=same) == [("network 1", 1)]
    assert same.resumed
    with same:
        pass
    assert not (tmp_path / "model.progress").exists()


def failing_run(folder: Path, stages: int) -> None:
    with Progress(folder, "x") as progress:
        for number in range(stages):
            progress.arrays(str(number), lambda: {"a": np.zeros(1)})
        raise KeyboardInterrupt


@pytest.mark.parametrize("stages", [0, 1])
def test_a_failed_run_keeps_only_resumable_state(tmp_path: Path, stages: int) -> None:
    folder = tmp_path / "model.progress"
    folder.mkdir()
    (folder / "mlflow_run.json").write_text("{}")
    with pytest.raises(KeyboardInterrupt):
        failing_run(folder, stages)
    assert folder.exists() == (stages > 0)


def test_fingerprint_covers_data_and_configuration() -> None:
    colocation, solo = tables()
    first = fingerprint((colocation, solo), NETWORK, TRAINING, True)
    assert fingerprint((colocation.copy(), solo), NETWORK, TRAINING, True) == first
    changed = colocation.assign(throughput_ratio=colocation.throughput_ratio + 1e-9)
    others = [
        fingerprint((changed, solo), NETWORK, TRAINING, True),
        fingerprint((colocation, solo.iloc[1:]), NETWORK, TRAINING, True),
        fingerprint((colocation, solo), replace(NETWORK, width=6), TRAINING, True),
        fingerprint((colocation, solo), NETWORK, replace(TRAINING, seed=1), True),
        fingerprint((colocation, solo), NETWORK, TRAINING, False),
    ]
    assert len({first, *others}) == 6


def test_results_of_stages_are_kept(tmp_path: Path) -> None:
    made = {"a": np.arange(3.0), "none": np.zeros(0)}
    Progress(tmp_path, "x").within("part").arrays("stage", lambda: made)

    def never() -> dict[str, np.ndarray]:
        raise AssertionError

    kept = Progress(tmp_path, "x").within("part").arrays("stage", never)
    assert {k: (v.tolist(), v.dtype) for k, v in kept.items()} == {
        k: (v.tolist(), v.dtype) for k, v in made.items()
    }
    for other in (Progress(tmp_path, "x"), Progress(tmp_path, "y").within("part")):
        with pytest.raises(AssertionError):
            other.arrays("stage", never)
