"""What each part of the predictor is worth: it is left out, everything else stays. One seed, models left out.

    python -m benchmarks.ablation TABLES

Protocols `lucid-by-model` and `gavel2020-by-model`. A run that was stopped goes on where it was; an encoder is fitted once a
fold for all variants that do not change it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.record import RESULTS, record
from datasets.bundle import Bundle
from predictor.evaluation.protocols.networks import NetworkContender, make_contender
from predictor.evaluation.protocols.registry import Contender, contenders
from predictor.examples.featurizer import shared_featurizer

if TYPE_CHECKING:
    from models.workload_encoder import WorkloadEncoder

PROTOCOLS = ("lucid-by-model", "gavel2020-by-model")
# Variant to what changes in the configuration; `encoder_` and `training_` lead to those parts.
VARIANTS: dict[str, dict[str, Any]] = {
    "all parts": {},
    "without graph": {"encoder_use_graph": False},
    "without device": {"use_device": False},
    "without edge": {"use_edge": False, "encoder_use_edge": False},
    "without prior": {"use_prior": False},
    "without pre-training": {"training_encoder_steps": 0},
    "the paper's form of layer": {"form": "paper", "encoder_form": "paper"},
    "without the forest's batches": {"training_mixed_sets": 0},
    "without processor sharing's batches": {"training_shared_sets": 0},
}


class SharedEncoder:
    """A network contender that takes the encoder of the last fold if it would fit the same one again."""

    last: tuple[Any, WorkloadEncoder] | None = None

    def __init__(self, inner: NetworkContender) -> None:
        self.inner = inner

    def fit(self, train: Bundle, seed: int = 0) -> SharedEncoder:
        """As `NetworkContender.fit`."""
        from predictor.training.fit import solo_examples
        from predictor.training.networks import fit_encoder

        network, training = self.inner.network, self.inner.training
        solo = solo_examples(train.solo)
        key = (solo.workloads, solo.devices, network.encoder, training.encoder_steps, seed)
        if SharedEncoder.last is None or SharedEncoder.last[0] != key:
            SharedEncoder.last = key, fit_encoder(solo, shared_featurizer(), network, training)
        self.inner.fit(train, seed, SharedEncoder.last[1])
        return self

    def predict(self, test: Bundle) -> Any:
        """As `NetworkContender.predict`."""
        return self.inner.predict(test)


def _make(changes: dict[str, Any]) -> SharedEncoder:
    return SharedEncoder(make_contender(**changes))


def main() -> None:
    """Run what is missing, print and write the table."""
    from datasets.tables import read_all
    from predictor.evaluation.protocols.catalogue import get_protocol, make_trial
    from predictor.evaluation.protocols.runner import collect, make_plan, run_missing
    from serving.cli.output import progress

    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__)
    parser.add_argument("tables", type=Path, help="folder that `cotenant data import` wrote")
    parser.add_argument(
        "--protocol", choices=PROTOCOLS, help="only this one, without writing the results of both"
    )
    options = parser.parse_args()
    tables = read_all(options.tables)
    version = next(c.current_version for c in contenders(["e-ggat"]))
    variants = [
        Contender(name, partial(_make, changes), version=version) for name, changes in VARIANTS.items()
    ]
    figures: dict[str, Any] = {}
    for protocol in [options.protocol] if options.protocol else PROTOCOLS:
        plan = make_plan(
            make_trial(get_protocol(protocol), tables), variants, (0,), RESULTS / "ablation" / protocol
        )
        # Fold by fold, so that variants of one fold share the encoder.
        by_fold = replace(plan, missing=tuple(sorted(plan.missing, key=lambda cell: cell.fold.name)))
        with progress() as bar:
            advance = partial(bar.advance, bar.add_task(protocol, total=len(by_fold.missing)))
            run_missing(by_fold, lambda _cell, advance=advance: advance())  # type: ignore[misc]
        figures[protocol] = {
            name: {key: result["metrics"][key] for key in ("mape_percent", "r2", "spearman")}
            for name, result in collect(plan).items()
        }
        for name, result in figures[protocol].items():
            print(
                f"{protocol:20} {name:38} {result['mape_percent']:5.1f} %  R2 {result['r2']:5.2f}  rho {result['spearman']:4.2f}"
            )
    if not options.protocol:
        record("ablation", figures)


if __name__ == "__main__":
    main()
