"""`Predictor`: predicts how co-location sets run, with scikit-learn's conventions (`fit`, `predict`,
`score`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from models.colocation_network import NetworkConfig
from models.features import Floats
from predictor.answering.bounds import taking_turns
from predictor.answering.describe import Describer
from predictor.answering.job_table import JobTable
from predictor.answering.own_slices import OwnSlices
from predictor.config import LossCallback, TrainingConfig
from predictor.examples.examples import Integers, examples_of
from predictor.examples.featurizer import Featurizer, GraphSource
from predictor.fitted.device_memory import set_memory_bytes
from predictor.fitted.fitted import Fitted
from predictor.gaussian_process.set_process import NETWORK_SHARE
from predictor.padding import padded
from predictor.training.progress import NOTHING_KEPT, Progress
from predictor.types import Prediction, PredictionArrays
from profiling.devices.mig import check_slices
from profiling.errors import InputError, UnavailableError
from profiling.workload import ColocationSet, SoloProfile, Workload

if TYPE_CHECKING:
    import pandas as pd

    from predictor.freezing import LayerThroughput


class Predictor:
    """Predicts step time, slowdown, memory and utilisation of the members of co-location sets.

    Args:
        network: network configuration.
        training: training configuration.
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
        self.network_share = NETWORK_SHARE
        self.memory: Callable[[], Floats] | None = None

    @classmethod
    def of(cls, fitted: Fitted, version: str, network: NetworkConfig, training: TrainingConfig) -> Predictor:
        """A predictor from an existing fit (a loaded checkpoint)."""
        predictor = cls(network, training, fitted.model.featurizer.graph_source, version)
        predictor._take(fitted)
        return predictor

    def _take(self, fitted: Fitted) -> None:
        self.fitted_ = fitted
        self.table_ = JobTable(fitted.model, fitted.heads, fitted.manifest.coverage)
        self.slices_ = OwnSlices(self.table_, fitted.heads, fitted.model.featurizer)
        self.describer_ = Describer(fitted, self.table_, self.slices_)

    def with_network_share(self, network_share: float) -> Predictor:
        """The same predictor with another weight of the networks in their mean with the process.

        Args:
            network_share: from 0 to 1.
        """
        other = copy.copy(self)
        other.network_share = network_share
        return other

    def with_memory(self, memory: Callable[[], Floats]) -> Predictor:
        """The same predictor with other memory of the jobs in its table.

        Args:
            memory: returns [V] bytes, of all rows. Partitions into MIG slices go by the predictor's own.
        """
        other = copy.copy(self)
        other.memory = memory
        return other

    def fit(
        self,
        colocation: pd.DataFrame,
        solo: pd.DataFrame,
        report: LossCallback | None = None,
        progress: Progress = NOTHING_KEPT,
    ) -> Predictor:
        """Fit on the tidy tables `colocation` and `solo`; intervals come from architectures held out in turn.

        Args:
            colocation: measured sets.
            solo: the same jobs alone.
            report: called with the losses.
            progress: stores progress, so that a killed fit can resume; nothing is stored by default.

        Raises:
            InputError: `network` is for ablation only.
        """
        from predictor.training.fit import fit_tables

        network = self.network or NetworkConfig()
        network.check_whole()
        self._take(
            fit_tables(
                colocation,
                solo,
                network,
                self.training or TrainingConfig(),
                Featurizer(self.graph_source),
                report,
                progress,
            )
        )
        return self

    def score(self, colocation: pd.DataFrame, solo: pd.DataFrame) -> float:
        """R2 of the co-located / solo throughput on measured sets.

        Raises:
            UnavailableError: it has not been fitted.
            InputError: none of their ratios was measured.
        """
        from sklearn.metrics import r2_score

        self._table()  # raises where nothing was fitted
        examples = examples_of(colocation, solo)
        scored = examples.scored
        if not scored.any():
            raise InputError(
                "no measured throughput to score", expected="rows with a throughput_ratio", got="none"
            )
        log_ratio, _ = self.fitted_.model.predict_log_ratio(examples)
        return float(r2_score(examples.ratio[scored], np.exp(log_ratio[scored])))

    def _table(self) -> JobTable:
        if not hasattr(self, "table_"):
            raise UnavailableError(
                "the predictor has not been fitted", hint="call fit() or load a checkpoint"
            )
        return self.table_

    @property
    def jobs_held(self) -> int:
        """Jobs on devices for which it keeps its work, also those that follow from others; they grow without bound."""
        return len(self._table().keys)

    def rows(self, sets: Sequence[ColocationSet]) -> Integers:
        """[S, M] rows of the job table; encodes new jobs."""
        table = self._table()
        # Hash a workload once, even if it is in thousands of sets, because its hash covers all fields.
        jobs: dict[tuple[str, str], dict[int, Workload]] = {}
        for s in sets:
            jobs.setdefault((s.device, s.sharing), {}).update(
                zip(map(id, s.workloads), s.workloads, strict=True)
            )
        row = iter(table.rows([(w, *place) for place, here in jobs.items() for w in here.values()]))
        row_of = {place: dict(zip(here, row, strict=False)) for place, here in jobs.items()}
        members = [
            [here[id(w)] for w in s.workloads] for s in sets for here in (row_of[s.device, s.sharing],)
        ]
        alike = len({len(m) for m in members}) == 1
        return np.array(members, np.int64) if alike else padded(members)

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """All sets in one call; see `PredictionArrays` for shapes."""
        return self._arrays_of(sets, self.rows(sets))

    def _arrays_of(self, sets: Sequence[ColocationSet], rows: Integers) -> PredictionArrays:
        sharing = np.array([s.sharing for s in sets])
        modes = sorted(set(sharing.tolist()))
        if len(modes) <= 1:
            return self.predict_rows(rows, modes[0] if modes else "time-slice")
        excess = np.zeros(rows.shape)
        # In a fixed order: MPS asks for pairs under time slicing, which are cached, and another batch rounds differently.
        for mode in modes:
            excess[sharing == mode] = self._excess(rows[sharing == mode], mode)
        return self._arrays(rows, excess, sharing == "time-slice", sharing == "mig")

    def predict_rows(self, rows: Integers, sharing: str) -> PredictionArrays:
        """Like `predict_arrays`, for rows cached by the caller (the fastest entry point)."""
        time_sliced, mig = (np.full(len(rows), sharing == mode) for mode in ("time-slice", "mig"))
        return self._arrays(rows, self._excess(rows, sharing), time_sliced, mig)

    def _excess(self, rows: Integers, sharing: str) -> np.ndarray:
        """[S, M] slowdown - 1."""
        if not len(rows):
            return np.zeros(rows.shape)
        table = self._table()
        if sharing == "mig":
            return self.slices_.excess(rows)
        return table.excess(rows, sharing, self.network_share)

    def _arrays(
        self, rows: Integers, excess: np.ndarray, time_sliced: np.ndarray, mig: np.ndarray
    ) -> PredictionArrays:
        table, fitted = self._table(), self.fitted_
        mask = rows >= 0
        full = bool(mask.all())
        safe = rows if full else np.where(mask, rows, 0)

        def of_members(values: np.ndarray, absent: float) -> np.ndarray:
            picked = values[safe]
            return picked if full else np.where(mask, picked, absent)

        slowdown = 1.0 + (excess if full else np.where(mask, excess, 0.0))
        solo = of_members(table.solo_step_s, 1.0)
        memory = of_members(table.memory_bytes if self.memory is None else self.memory(), 0.0)
        utilization = taking_turns(of_members(table.utilization, 0.0) / slowdown, time_sliced)
        measured = of_members(table.memory_measured, True)
        # State is known exactly, so only the rest is widened.
        state = of_members(table.state_bytes, 0.0) @ np.ones(rows.shape[1])
        upper = state + (set_memory_bytes(memory, fitted.heads) - state) * self._memory_factor(measured)
        room = table.device_bytes[safe[:, 0]]
        # What was measured of a job alone was enough for it, so alone it needs no more than there is.
        enough = (mask @ np.ones(rows.shape[1]) == 1.0) & measured[:, 0].astype(bool) & (memory[:, 0] <= room)
        upper = np.where(enough, np.minimum(upper, room), upper)
        fits = upper <= room
        if mig.any():
            fits[mig] = self.slices_.fits(rows[mig], fits[mig])
        return PredictionArrays(mask, solo, solo * slowdown, slowdown, memory, utilization, upper, fits)

    def _memory_factor(self, measured: np.ndarray) -> np.ndarray:
        """[S] from [S, M]: 90 % bound above the predicted memory, small only if all members were measured."""
        graph, solo = np.exp(self.fitted_.heads.memory_log_error)
        # Column by column, because numpy reduces rows of two or three slowly.
        everyone = measured[:, 0].astype(bool)
        for column in measured.T[1:]:
            everyone = everyone & column.astype(bool)
        return np.where(everyone, solo, graph)

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
        measured: Mapping[int, SoloProfile] | None = None,
    ) -> LayerThroughput:
        """Predict throughput and memory with the first `frozen_prefix` atomic layers frozen.

        See `predictor.freezing.layer_throughput`; times are scaled to the job's solo step times, measured
        (with other prefixes: `measured`) or predicted by this predictor. On one GPU without a cache, the
        answer equals that of `predict` for the job with this prefix if nothing was measured.
        """
        from predictor.freezing import layer_throughput

        measured = measured or {}
        anchor = workload.solo.step_time_s
        if anchor is None and all(profile.step_time_s is None for profile in measured.values()):
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
            measured=measured,
            featurizer=self.fitted_.model.featurizer,
            heads=self.fitted_.heads,
        )

    def predict(self, colocation_set: ColocationSet) -> Prediction:
        """One set, with intervals and reasons."""
        return self.predict_many([colocation_set])[0]

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        """Several sets, with intervals and reasons.

        Raises:
            UnknownNameError: unknown model or device.
            InputError: jobs need MIG slices of a device that has none, or too few.
        """
        for each in sets:
            if each.sharing == "mig":
                check_slices(each.device, len(each.workloads))
        rows = self.rows(sets)
        return self.describer_.describe(self.version, sets, rows, self._arrays_of(sets, rows))

    def never_measured(self, sets: Sequence[ColocationSet]) -> list[list[str]]:
        """What was never measured of each set, as in `Prediction.never_measured`, without predicting it.

        Raises:
            UnknownNameError: unknown model or device.
        """
        return self.describer_.never_measured(sets, self.rows(sets))
