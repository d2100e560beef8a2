"""E-GGAT and its ablations as contenders. Graphs are captured and read once, and shared by all folds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datasets.bundle import Bundle
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.registry import Contender, register

if TYPE_CHECKING:
    from models.colocation_network import NetworkConfig
    from models.workload_encoder import WorkloadEncoder
    from predictor.config import TrainingConfig
    from predictor.examples.featurizer import GraphSource
    from predictor.training.progress import Progress


class NetworkContender:
    """The two-level E-GGAT in a given configuration; if memory is the target, the analytic memory head."""

    def __init__(
        self,
        network: NetworkConfig,
        training: TrainingConfig,
        progress: Progress | None = None,
        graph_source: GraphSource | None = None,
    ) -> None:
        from predictor.examples.featurizer import Featurizer, shared_featurizer

        self.network = network
        self.training = training
        self.progress = progress
        self.featurizer = shared_featurizer() if graph_source is None else Featurizer(graph_source)

    def fit(self, train: Bundle, seed: int = 0, encoder: WorkloadEncoder | None = None) -> NetworkContender:
        """Fit encoder and networks, or the memory model, on the training side only.

        Args:
            train: contains no row of a held-out model.
            seed: replaces that of the training configuration.
            encoder: used instead of fitting one.
        """
        from predictor.examples.examples import examples_of
        from predictor.training.fit import solo_examples
        from predictor.training.heads import fit_heads
        from predictor.training.networks import fit, fit_encoder
        from predictor.training.progress import NOTHING_KEPT

        featurizer, config = self.featurizer, replace(self.training, seed=seed)
        if train.target == "solo_step_time_s":
            self.encoder_ = fit_encoder(solo_examples(train.frame), featurizer, self.network, config)
        elif train.target != "set_memory_bytes":
            self.model_ = fit(
                examples_of(train.colocation, train.solo),
                solo_examples(train.solo),
                featurizer,
                self.network,
                config,
                encoder=encoder,
                progress=self.progress or NOTHING_KEPT,
            )
        else:
            examples = examples_of(train.colocation, train.solo)
            self.heads_ = fit_heads(examples, train.solo, featurizer)
        return self

    def predict(self, test: Bundle) -> NDArray[np.float64]:
        """[n] for `test.rows`."""
        from predictor.examples.examples import examples_of, in_order_of
        from predictor.fitted.device_memory import examples_memory_bytes
        from predictor.fitted.utilization import predicted_ratio

        if test.target == "solo_step_time_s":
            return self._solo(test)
        examples = examples_of(test.colocation, test.solo)
        if test.target == "throughput_ratio":
            return in_order_of(test.colocation, np.exp(self.model_.predict_log_ratio(examples)[0]))
        if test.target == "set_utilization_ratio":
            values = predicted_ratio(self.model_, examples)
        else:
            values = examples_memory_bytes(examples, self.featurizer, self.heads_)
        by_set = dict(zip(examples.set_ids, values, strict=True))
        return np.array([by_set[s] for s in test.rows.set_id.astype(str)])

    def answers(self, test: Bundle) -> NDArray[np.float64]:
        """[n] the throughput ratio of `test.rows` as users get it, who name no campaign; without the bounds of answers."""
        from predictor.examples.examples import examples_of, in_order_of

        asked = examples_of(test.colocation, test.solo).without_campaign()
        return in_order_of(test.colocation, np.exp(-self.model_.predict_log_ratio(asked)[1]))

    def _solo(self, test: Bundle) -> NDArray[np.float64]:
        import torch

        from predictor.fitted.model import encoder_input
        from profiling.workload import Workload

        featurizer = self.featurizer
        jobs = [
            featurizer.job(Workload.parse(w), d)
            for w, d in zip(test.rows.workload.astype(str), test.rows.device.astype(str), strict=True)
        ]
        with torch.no_grad():
            return self.encoder_(*encoder_input(jobs, featurizer)).log_step_s.exp().numpy().astype(np.float64)


def make_contender(**changes: object) -> NetworkContender:
    """E-GGAT with some fields of its configuration changed.

    Args:
        changes: fields of `NetworkConfig`; with the prefixes `encoder_` and `training_`, of `EncoderConfig`
            and `TrainingConfig`.
    """
    from models.colocation_network import NetworkConfig
    from predictor.config import TrainingConfig

    training = {k[9:]: changes.pop(k) for k in list(changes) if k.startswith("training_")}
    encoder = {k[8:]: changes.pop(k) for k in list(changes) if k.startswith("encoder_")}
    base = NetworkConfig()
    network = replace(base, **changes, encoder=replace(base.encoder, **encoder))  # type: ignore[arg-type]
    return NetworkContender(network, replace(TrainingConfig(), **training))  # type: ignore[arg-type]


register(
    Contender(
        "e-ggat",
        make_contender,
        version="13",
        targets=("throughput_ratio", "set_memory_bytes", "set_utilization_ratio", "solo_step_time_s"),
        seconds_per_fold=60,
    )
)


def _convolutions(kind: str) -> FoldPredictor:
    from models.colocation_network import NetworkConfig
    from predictor.config import TrainingConfig
    from predictor.evaluation.protocols.convolutions import ConvolutionContender

    return ConvolutionContender(kind, NetworkConfig(), TrainingConfig())


for _kind in ("gcn", "gat"):
    register(
        Contender(
            _kind,
            partial(_convolutions, _kind),
            version="2",
            targets=("throughput_ratio",),
            protocols=frozenset({"lucid-by-model", "gavel2020-by-model"}),
            seconds_per_fold=30,
        )
    )
