"""`Predictor`: answers how co-location sets run; scikit-learn's manners (`fit`, `predict`, `score`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from models.colocation_network import NetworkConfig
from models.features import is_cpu
from predictor.domain import Domain
from predictor.examples import Integers, pairs_within
from predictor.explain import sentence, shares_of
from predictor.featurizer import Featurizer, GraphSource
from predictor.heads import HeadCalibration, set_memory_bytes, set_utilization_ratio
from predictor.intervals import Intervals
from predictor.job_table import JobTable, setting_rows
from predictor.model import CotenantModel
from predictor.set_network import padded
from predictor.training import Report, TrainingConfig
from predictor.types import MemberPrediction, Prediction, PredictionArrays, Quantity
from profiling.devices import get_device
from profiling.errors import UnavailableError
from profiling.workload import ColocationSet, Workload

if TYPE_CHECKING:
    import pandas as pd

    from predictor.layers import LayerThroughput


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a model was made of: the sets it saw, and where they came from."""

    set_ids: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    licences: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    largest_set: int = 2


@dataclass
class Fitted:
    """Everything that `fit` learns and a checkpoint keeps."""

    model: CotenantModel
    heads: HeadCalibration = field(default_factory=HeadCalibration)
    intervals: Intervals = field(default_factory=Intervals)
    domain: Domain = field(default_factory=Domain)
    manifest: Manifest = field(default_factory=Manifest)


class Predictor:
    """Predicts step time, slowdown, memory and utilisation of the members of co-location sets.

    Args:
        network: size and form of the network.
        training: how `fit` fits it.
        graph_source: where graphs come from; zoo models are captured by default.
    """

    def __init__(
        self,
        network: NetworkConfig | None = None,
        training: TrainingConfig | None = None,
        graph_source: GraphSource | None = None,
        version: str = "unfitted",
    ) -> None:
        self.network = network
        self.training = training
        self.graph_source = graph_source
        self.version = version

    @classmethod
    def of(cls, fitted: Fitted, version: str, network: NetworkConfig, training: TrainingConfig) -> Predictor:
        """A predictor that is fitted already (a loaded checkpoint)."""
        predictor = cls(network, training, fitted.model.featurizer.graph_source, version)
        predictor._take(fitted)
        return predictor

    def _take(self, fitted: Fitted) -> None:
        self.fitted_ = fitted
        self.table_ = JobTable(fitted.model, fitted.heads)

    def fit(self, colocation: pd.DataFrame, solo: pd.DataFrame, report: Report | None = None) -> Predictor:
        """Fit on the tidy tables `colocation` and `solo`; intervals come from architectures left out in turn."""
        from predictor.fitting import fit_tables

        self._take(
            fit_tables(
                colocation,
                solo,
                self.network or NetworkConfig(),
                self.training or TrainingConfig(),
                Featurizer(self.graph_source),
                report,
            )
        )
        return self

    def score(self, colocation: pd.DataFrame, solo: pd.DataFrame) -> float:
        """R2 of the co-located / solo throughput on measured sets."""
        from predictor.evaluation import evaluate

        return evaluate(self, colocation, solo)["metrics"]["r2"]

    def _table(self) -> JobTable:
        if not hasattr(self, "table_"):
            raise UnavailableError(
                "the predictor has not been fitted", hint="call fit() or load a checkpoint"
            )
        return self.table_

    def rows(self, sets: Sequence[ColocationSet]) -> Integers:
        """[S, M] rows of the job table; encodes jobs that are new."""
        table = self._table()
        keys = [(w, s.device, s.sharing) for s in sets for w in s.workloads]
        flat = iter(table.rows(keys))
        return padded([[next(flat) for _ in s.workloads] for s in sets])

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """All sets in one call; see `PredictionArrays` for shapes."""
        rows = self.rows(sets)
        sharing = np.array([s.sharing for s in sets])
        if len(set(sharing.tolist())) <= 1:
            return self.predict_rows(rows, sharing[0] if len(sharing) else "time-slice")
        excess = np.zeros(rows.shape)
        for mode in set(sharing.tolist()):
            excess[sharing == mode] = self._table().excess(rows[sharing == mode], mode)
        return self._arrays(rows, excess)

    def predict_rows(self, rows: Integers, sharing: str) -> PredictionArrays:
        """As `predict_arrays`, for rows that the caller has kept (the quickest way in)."""
        return self._arrays(rows, self._table().excess(rows, sharing))

    def _arrays(self, rows: Integers, excess: np.ndarray) -> PredictionArrays:
        table, fitted = self._table(), self.fitted_
        mask = rows >= 0
        safe = np.where(mask, rows, 0)
        solo = np.where(mask, table.solo_step_s[safe], 1.0)
        slowdown = 1.0 + np.where(mask, excess, 0.0)
        memory = np.where(mask, table.memory_bytes[safe], 0.0)
        utilization = np.where(mask, table.utilization[safe], 0.0) / slowdown
        upper = set_memory_bytes(memory, fitted.heads) * np.exp(self._memory_error(rows))
        fits = upper <= table.device_bytes[safe[:, 0]]
        return PredictionArrays(mask, solo, solo * slowdown, slowdown, memory, utilization, upper, fits)

    def _memory_error(self, rows: Integers) -> np.ndarray:
        """[S] 90 % bound of the log error of a set's memory: small only where all members were measured."""
        graph, solo = self.fitted_.heads.memory_log_error
        measured = np.where(rows >= 0, self._table().memory_measured[np.where(rows >= 0, rows, 0)], True).all(
            1
        )
        return np.where(measured, solo, graph)

    def throughput(
        self,
        workload: Workload,
        device: str,
        frozen_prefix: int | None = None,
        gpus: int = 1,
        cache: bool | float = False,
        *,
        nodes: int = 1,
        rewrapped: bool = True,
    ) -> LayerThroughput:
        """Throughput and memory with the first `frozen_prefix` atomic layers frozen: `predictor.layers.layer_throughput`,
        scaled to the job's own solo step time, measured or else predicted here.
        """
        from predictor.layers import layer_throughput

        anchor = workload.solo.step_time_s
        if anchor is None:
            arrays = self.predict_arrays([ColocationSet(device, (workload,))])
            anchor = float(arrays.solo_step_time_s[0, 0])
        return layer_throughput(
            workload,
            device,
            frozen_prefix,
            gpus,
            cache,
            nodes=nodes,
            rewrapped=rewrapped,
            anchor_step_time_s=anchor,
        )

    def predict(self, colocation_set: ColocationSet) -> Prediction:
        """One set, with intervals and reasons."""
        return self.predict_many([colocation_set])[0]

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        """Several sets, with intervals and reasons.

        Raises:
            UnknownNameError: a model or a device is not known.
        """
        rows = self.rows(sets)
        arrays = self.predict_arrays(sets)
        return [self._one(s, rows[k], arrays, k) for k, s in enumerate(sets)]

    def _one(self, one: ColocationSet, rows: Integers, arrays: PredictionArrays, k: int) -> Prediction:
        table, fitted = self._table(), self.fitted_
        device = get_device(one.device)
        count = len(one.workloads)
        measured = all(w.solo.step_time_s is not None for w in one.workloads)
        group = "solo" if measured else "graph"
        slowdown = arrays.slowdown[k, :count]
        half = fitted.intervals.half_width(np.log(slowdown), group) * (count > 1)
        shares = self._shares(one, rows[:count], slowdown)
        members, reasons = [], []
        for i, workload in enumerate(one.workloads):
            job = fitted.model.featurizer.job(workload, one.device)
            solo_error = self._solo_error(workload, int(rows[i]))
            solo = _around(float(arrays.solo_step_time_s[k, i]), solo_error)
            slow = Quantity(
                float(slowdown[i]),
                float(max(1.0, slowdown[i] * np.exp(-half[i]))),
                float(slowdown[i] * np.exp(half[i])),
            )
            total = float(np.hypot(half[i], solo_error))
            graph_error, solo_memory_error = fitted.heads.memory_log_error
            memory = _around(
                float(arrays.memory_bytes[k, i]),
                solo_memory_error if workload.solo.memory_bytes is not None else graph_error,
            )
            floor = min(job.demand.state_bytes, memory.value)
            in_domain = fitted.domain.contains(table.embedding[rows[i]])
            members.append(
                MemberPrediction(
                    job=str(workload),
                    solo_step_time_s=solo,
                    step_time_s=_around(solo.value * slow.value, total),
                    slowdown=slow,
                    throughput_ratio=Quantity(1 / slow.value, 1 / slow.upper, 1 / slow.lower),
                    memory_bytes=Quantity(memory.value, max(memory.lower, floor), memory.upper),
                    utilization_ratio=_ratio(
                        float(arrays.utilization_ratio[k, i]), fitted.heads.utilization_error
                    ),
                    in_domain=in_domain,
                )
            )
            if count > 1:
                reasons.append(sentence(workload.model, slow.value, shares[i]))
            if not in_domain:
                reasons.append(
                    f"{workload.model} is unlike the models that were trained on; its interval may be too narrow"
                )
        together = float(set_memory_bytes(arrays.memory_bytes[k][None], fitted.heads)[0])
        upper = float(arrays.memory_upper_bytes[k])
        fits = bool(arrays.fits[k])
        kind = "main memory" if is_cpu(device) else "device memory"
        reasons.insert(
            0,
            f"{'fits' if fits else 'does not fit'}: at most {upper / 2**30:.2f} GiB of {device.memory_bytes / 2**30:.2f} GiB {kind}",
        )
        if one.sharing == "mig":
            reasons.append(
                "no set under MIG was trained on; members are taken to share as under time slicing"
            )
        busy = float(set_utilization_ratio(table.utilization[rows[:count]][None], fitted.heads)[0])
        return Prediction(
            device=one.device,
            sharing=one.sharing,
            model_version=self.version,
            members=tuple(members),
            total_memory_bytes=Quantity(together, together**2 / upper, upper),
            total_utilization_ratio=_ratio(busy, fitted.heads.utilization_error),
            fits=fits,
            reasons=tuple(reasons),
        )

    def _solo_error(self, workload: Workload, row: int) -> float:
        """90 % bound of the log error of a solo step time: measured, of a job like one trained on, or of a new one."""
        if workload.solo.step_time_s is not None:
            return 0.03
        known = self.fitted_.domain.is_near(self._table().embedding[row])
        return self.fitted_.intervals.known_log_error if known else self.fitted_.intervals.solo_log_error

    def _shares(self, one: ColocationSet, rows: Integers, slowdown: np.ndarray) -> list:
        """Per member, its excess divided among resources."""
        import torch

        from models.features import edge_features

        model, table = self.fitted_.model, self._table()
        prepared = table.prepared[0]
        source, target = pairs_within(np.zeros(len(rows), dtype=np.int64))
        between = source != target
        s, t = rows[source[between]], rows[target[between]]
        edges = edge_features(prepared.wants[t], prepared.wants[s])
        setting = torch.from_numpy(np.repeat(setting_rows([one.sharing], model.campaigns), len(s), 0))
        with torch.no_grad():
            parts = model.networks[0].prior.parts(torch.tensor(edges, dtype=torch.float32), setting).numpy()
        result = []
        for i, workload in enumerate(one.workloads):
            mine = parts[target[between] == i].sum(0) if len(parts) else np.zeros(0)
            job = model.featurizer.job(workload, one.device)
            result.append(shares_of(float(slowdown[i] - 1), mine, job) if len(rows) > 1 else [])
        return result


def _around(value: float, log_error: float) -> Quantity:
    return Quantity(value, value * float(np.exp(-log_error)), value * float(np.exp(log_error)))


def _ratio(value: float, error: float) -> Quantity:
    return Quantity(value, max(0.0, value - error), min(1.0, value + error))
