"""Does an encoder pre-trained on many networks' step times help co-location?

    python -m benchmarks.pretraining TABLES

The encoder is first fitted to the training steps of timm, EC-NAS and lamikr, then to the solo steps of the fold, as
usual, or kept as it is. Scored on the protocols of `benchmarks.ablation`. Convolutional families that the protocols
contain (ResNet, VGG, MobileNet, EfficientNet) are left out of the pre-training, so that a left-out model stays unseen.
An interrupted run resumes.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from benchmarks.ablation import PROTOCOLS, SharedEncoder, run_by_fold
from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import RESULTS, record
from datasets.bundle import Bundle
from predictor.evaluation.protocols.networks import NetworkContender, make_contender
from predictor.evaluation.protocols.registry import Contender, contenders
from predictor.examples.featurizer import shared_featurizer

if TYPE_CHECKING:
    import pandas as pd

    from models.workload_encoder import WorkloadEncoder

SOURCES = ("timm", "ecnas", "lamikr")
# Rows of each source at most.
MOST_ROWS = 800
# Parts of the names of networks that resemble those of the protocols.
ALIKE = "res(?:net|nex|t)|vgg|mobilenet|efficientnet"
# Bounds of the encoder's corrections when it learns the step time from the physical floor instead of from the
# cost model's prediction.
FLOOR_OPERATOR_BOUND, FLOOR_STEP_BOUND = 2.0, 2.0

# Variant to (what the encoder corrects in pre-training, whether it is fitted to the fold's solo steps, too).
VARIANTS: dict[str, tuple[str | None, bool]] = {
    "fitted to the fold": (None, True),
    "pre-trained on step over prediction": ("cost-model", True),
    "pre-trained on step over floor": ("floor", True),
    "pre-trained on step over floor, kept": ("floor", False),
}


class PreTrained:
    """A network contender whose encoder starts from a pre-trained one."""

    def __init__(self, inner: NetworkContender, start: WorkloadEncoder | None, fitted_to_fold: bool) -> None:
        self.inner, self.start, self.fitted_to_fold = inner, start, fitted_to_fold

    def fit(self, train: Bundle, seed: int = 0) -> PreTrained:
        """See `NetworkContender.fit`."""
        if self.start is None:
            self.inner = SharedEncoder(self.inner).fit(train, seed).inner
            return self
        encoder = deepcopy(self.start)
        if self.fitted_to_fold:
            from predictor.training.fit import solo_examples
            from predictor.training.networks import fit_encoder

            training = replace(self.inner.training, seed=seed)
            encoder = fit_encoder(
                solo_examples(train.solo), shared_featurizer(), self.inner.network, training, start=encoder
            )
        self.inner.fit(train, seed, encoder)
        return self

    def predict(self, test: Bundle) -> Any:
        """See `NetworkContender.predict`."""
        return self.inner.predict(test)


def pretraining_rows(solo: pd.DataFrame) -> pd.DataFrame:
    """Training steps of `SOURCES` without networks like those that are scored, `MOST_ROWS` of each at random."""
    import pandas as pd

    steps = solo[(solo["mode"] == "training") & ~solo["architecture"].str.contains(ALIKE)]
    parts = [steps[steps["source"] == source] for source in SOURCES]
    return pd.concat([part.sample(min(MOST_ROWS, len(part)), random_state=0) for part in parts])


def pretrained(solo: pd.DataFrame, base: str, steps: int) -> tuple[WorkloadEncoder, float]:
    """An encoder fitted to `pretraining_rows`, and the loss at the end (mean of the last tenth).

    Args:
        solo: the `solo` table.
        base: what the encoder corrects: "cost-model", or "floor", the least time that the data sheet allows.
        steps: of the optimiser.
    """
    from models import workload_encoder
    from models.e_ggat import start_at_zero
    from predictor.training import networks
    from predictor.training.fit import solo_examples

    inner = make_contender()
    losses: list[float] = []
    config = replace(inner.training, encoder_steps=steps)
    given = networks.encoder_input

    def from_floor(jobs: Any, featurizer: Any) -> Any:
        graphs, totals, device, _ = given(jobs, featurizer)
        import torch

        return graphs, totals, device, torch.tensor([np.log(job.cost.floor_s) for job in jobs]).float()

    def fitted() -> WorkloadEncoder:
        return networks.fit_encoder(
            solo_examples(pretraining_rows(solo)),
            shared_featurizer(),
            inner.network,
            config,
            report=lambda _phase, _step, _steps, loss: losses.append(loss),
        )

    if base == "cost-model":
        encoder = fitted()
    else:
        with (
            patch.object(networks, "encoder_input", from_floor),
            patch.object(workload_encoder, "OPERATOR_BOUND", FLOOR_OPERATOR_BOUND),
            patch.object(workload_encoder, "STEP_BOUND", FLOOR_STEP_BOUND),
        ):
            encoder = fitted()
        # From here on the corrections are those of the cost model.
        start_at_zero(encoder.correct, encoder.step[2])  # type: ignore[arg-type]
    return encoder, float(np.mean(losses[-max(len(losses) // 10, 1) :]))


def _make(start: WorkloadEncoder | None, fitted_to_fold: bool) -> PreTrained:
    return PreTrained(make_contender(), start, fitted_to_fold)


def main() -> None:
    """Run what is missing, print and write the table."""
    from datasets.tables import read_all
    from predictor.evaluation.protocols.catalogue import get_protocol, make_trial
    from predictor.evaluation.protocols.runner import collect, make_plan

    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("tables", type=Path, help="folder of imported tables")
    parser.add_argument(
        "--steps", type=int, default=3_000, help="steps of the pre-training (default: %(default)s)"
    )
    parser.add_argument(
        "--variant", action="append", choices=list(VARIANTS), help="only this one; repeatable (default: all)"
    )
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "pretraining", "variant", "steps")
    tables = read_all(options.tables)
    wanted = {v: how for v, how in VARIANTS.items() if not options.variant or v in options.variant}
    starts: dict[str | None, WorkloadEncoder | None] = {None: None}
    figures: dict[str, Any] = {
        "pre-training": {"rows": len(pretraining_rows(tables["solo"])), "steps": options.steps}
    }
    for base in sorted({how[0] for how in wanted.values() if how[0]}):
        starts[base], loss = pretrained(tables["solo"], base, options.steps)
        figures["pre-training"][f"{base} loss"] = loss
        print(base, loss, flush=True)
    version = next(c.current_version for c in contenders(["e-ggat"]))
    for protocol in PROTOCOLS:
        trial = make_trial(get_protocol(protocol), tables)
        variants = [
            Contender(v, partial(_make, starts[base], fold), version=f"{version}, {options.steps}")
            for v, (base, fold) in wanted.items()
        ]
        plan = make_plan(trial, variants, range(1), RESULTS / "ablation" / "pretraining" / protocol)
        run_by_fold(plan, protocol)
        figures[protocol] = {
            variant: {key: result["metrics"][key] for key in ("mape_percent", "mae", "r2", "spearman")}
            for variant, result in collect(plan).items()
        }
        for variant, result in figures[protocol].items():
            print(
                f"{protocol:20} {variant:52} {result['mape_percent']:5.1f} %  R2 {result['r2']:5.2f}",
                flush=True,
            )
    record(stem, figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
