"""Trains on the synthetic measurements, in a process that kills itself."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from predictor.config import LossCallback, TrainingConfig
from predictor.fitted.checkpoint import save
from predictor.predictor import Predictor
from predictor.training import fit
from predictor.training.progress import Progress, fingerprint
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source, tables

CONFIG = replace(TRAINING, ensemble=2, encoder_steps=6, epochs=6)


def progress_of(out: Path, config: TrainingConfig = CONFIG, every_s: float = 0.0) -> Progress:
    return Progress(out.with_name(f"{out.name}.progress"), fingerprint(tables(), NETWORK, config), every_s)


def train(
    out: Path,
    report: LossCallback | None = None,
    config: TrainingConfig = CONFIG,
    progress: Progress | None = None,
) -> Progress:
    """Fit and write the checkpoint; `out.progress` is left in its final state."""
    progress = progress or progress_of(out, config)
    with patch.object(fit, "CROSS_FITS", 2):
        save(Predictor(NETWORK, config, graph_source).fit(*tables(), report, progress), out)
    return progress


def train_until(out: Path, phase: str, step: int) -> None:
    """Kill this process at a step."""

    def kill(*at: object) -> None:
        if at[:2] == (phase, step):
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    train(out, kill)
