"""Change of step time between two caps on SM shares in MISO's mixes: predicted and measured.

    python -m benchmarks.share_mixes --data TABLES [--model PATH]

`TABLES` is a folder of tables with MISO's measurements (Li et al., SoCC 2022; `cotenant data import`): mixes
of 2 to 7 training jobs under MPS on an A100, each process limited to 100, 50 and 14 % of the multiprocessors,
of which only ratios were published. Solo step times on the whole card are given. The predictor was trained on
no mix, but the effect of neighbours with shares was tuned on 900 of them (`predictor/answering/shares.py`);
the others are scored.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record
from datasets.sets import rows_of
from datasets.tables import read_table
from predictor import load_predictor
from predictor.types import Floats, SetPredictor
from profiling.workload import ColocationSet, SoloProfile, Workload

CARD = "a100"
CHOSEN_ON = 900
RATIOS = ((1.0, 0.14), (0.5, 0.14), (1.0, 0.5))


def measured_mixes(mixes: pd.DataFrame) -> pd.DataFrame:
    """One row per member of each mix of several jobs: its job, and the logs of its step time at 100 and 50 %
    relative to 14 %."""
    rows = rows_of(mixes, ["miso"], "source")
    rows = rows[rows["denominator_sm_share_ratio"] == 0.14]
    keys = ["set_id", "member"]
    logs = rows.pivot_table(index=keys, columns="numerator_sm_share_ratio", values="log_step_time_ratio")
    rows = logs.join(rows.groupby(keys)["workload"].first()).reset_index()
    return rows[rows.groupby("set_id")["member"].transform("size") > 1]


def without_those_chosen_on(rows: pd.DataFrame) -> pd.DataFrame:
    """Mixes that were not used for tuning."""
    names = sorted(rows["set_id"].unique())
    chosen = np.random.default_rng(0).choice(names, CHOSEN_ON, replace=False)
    return rows[~rows["set_id"].isin(chosen)]


def predicted_log_steps(predictor: SetPredictor, rows: pd.DataFrame, alone_s: dict[str, float]) -> dict[float, Floats]:  # fmt: skip
    """[N] predicted log step time of each row's member, by cap."""
    sets = [list(names) for _, names in rows.groupby("set_id", sort=False)["workload"]]
    result = {}
    for share in (1.0, 0.5, 0.14):
        asked = [
            ColocationSet(CARD, tuple(_limited(n, share, alone_s) for n in names), "mps") for names in sets
        ]
        arrays = predictor.predict_arrays(asked)
        # Step time alone under a share: the measured one on the whole card, scaled by the cost model's ratio.
        under = _alone(predictor, rows["workload"], share) / _alone(predictor, rows["workload"], 1.0)
        result[share] = np.log(arrays.slowdown[arrays.mask] * under)
    return result


def _limited(name: str, share: float, alone_s: dict[str, float]) -> Workload:
    """The job with a share; its measured time on the whole card is given only if it is not limited."""
    job = replace(Workload.parse(name), sm_share_ratio=share)
    return replace(job, solo=SoloProfile(alone_s[name])) if share == 1.0 and name in alone_s else job


def _alone(predictor: SetPredictor, names: pd.Series, share: float) -> Floats:
    """[N] predicted seconds per step alone with a share."""
    asked = [ColocationSet(CARD, (_limited(name, share, {}),), "mps") for name in names]
    return np.asarray(predictor.predict_arrays(asked).solo_step_time_s[:, 0])


def scores(measured: Floats, said: Floats) -> dict[str, float]:
    """Errors of logarithms of ratios."""
    apart = said - measured
    return {
        "members": len(measured),
        "measured": float(measured.mean()),
        "predicted": float(said.mean()),
        "r2": float(1 - np.square(apart).mean() / measured.var()),
        "mape_percent": float(100 * np.abs(np.expm1(apart)).mean()),
    }


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of imported tables")
    parser.add_argument(
        "--model", default="default", help="a checkpoint or a name (default: the shipped one)"
    )
    add_name(parser)
    arguments = parser.parse_args()
    stem = record_name(parser, arguments, "share_mixes", "model")
    predictor = load_predictor(arguments.model)
    rows = without_those_chosen_on(measured_mixes(read_table(arguments.data, "mixes")))
    solo = read_table(arguments.data, "solo")
    alone_s = (
        solo[(solo["source"] == "miso") & (solo["device"] == CARD)].groupby("workload")["step_time_s"].mean()
    )
    said = predicted_log_steps(
        predictor, rows, {str(name): float(step_s) for name, step_s in alone_s.dropna().items()}
    )
    size = rows.groupby("set_id")["member"].transform("size").to_numpy()
    figures: list[dict[str, Any]] = []
    for above, below in RATIOS:
        measured = (rows[above] - (0.0 if below == 0.14 else rows[below])).to_numpy()
        log_ratio = said[above] - said[below]
        for jobs in ("2 to 7", *range(2, 8)):
            some = np.isfinite(measured) & ((size == jobs) | (jobs == "2 to 7"))
            figures.append({"caps": f"{above:.0%} / {below:.0%}", "jobs": jobs} | scores(measured[some], log_ratio[some]))  # fmt: skip
    print(pd.DataFrame(figures).round(3).to_string(index=False))
    record(stem, {"model": predictor.version, "card": CARD, "mixes": int(rows["set_id"].nunique()), "log_ratios": figures})  # fmt: skip


if __name__ == "__main__":
    run_benchmark(__file__, main)
