"""A training of the hand-made measurements that kills itself: `python -m tests.predictor.training.killed_training OUT PHASE STEP`."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd

from predictor.config import LossCallback, TrainingConfig
from predictor.fitted.checkpoint import save
from predictor.predictor import Predictor
from predictor.training.progress import Progress, fingerprint
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source, tables

CONFIG = replace(TRAINING, ensemble=2, encoder_steps=6, epochs=6)


def train(
    out: Path, report: LossCallback | None = None, config: TrainingConfig = CONFIG, every_s: float = 0.0
) -> Progress:
    """Fit and write the checkpoint; `out.progress` is left as it is at the end."""
    measured: tuple[pd.DataFrame, pd.DataFrame] = tables()
    progress = Progress(
        out.with_name(f"{out.name}.progress"), fingerprint(measured, NETWORK, config), every_s
    )
    save(Predictor(NETWORK, config, graph_source).fit(*measured, report, progress), out)
    return progress


if __name__ == "__main__":
    where = (sys.argv[2], int(sys.argv[3]))

    def kill(phase: str, step: int, steps: int, loss: float) -> None:
        if (phase, step) == where:
            os.kill(os.getpid(), signal.SIGKILL)

    train(Path(sys.argv[1]), kill)
