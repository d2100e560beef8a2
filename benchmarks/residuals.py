"""Residuals of the shipped cost model: can trees predict its errors on networks that they never saw?

    python -m benchmarks.residuals --data TABLES --source timm --mode training [--device rtx-3090] [--rows N]

Solo steps are predicted with the shipped coefficients (partly trained on these rows). Boosted trees then
learn the log of measured over predicted from each operator kind's share of the roofline, kernels, batch size
and SM share; families of networks are left out. Also prints how much the errors vary between networks and
within one, and the errors by campaign and device.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record
from datasets.bundle import Bundle
from datasets.families import family_of
from datasets.tables import read_table
from predictor.evaluation.protocols.graphs import kind_times
from predictor.evaluation.protocols.published.cost_model import job_input

if TYPE_CHECKING:
    import pandas as pd


def residuals(rows: pd.DataFrame) -> np.ndarray:
    """[n] log of measured over predicted; NaN where there is no prediction."""
    from models.cost import default_cost_model
    from predictor.training.cost.examples import campaign_of

    model, result = default_cost_model(), np.full(len(rows), np.nan)
    for number, (_, row) in enumerate(rows.iterrows()):
        job = job_input(row["workload"], row["device"])
        if job is not None:
            result[number] = np.log(row["step_time_s"] / model.cost_of(job, campaign_of(row)).step_time_s)
    return result


def features(rows: pd.DataFrame) -> np.ndarray:
    """[n, F] features of the jobs."""
    times = kind_times(Bundle("solo_step_time_s", rows, rows.iloc[:0])).to_numpy()
    share = rows["sm_share_ratio"].fillna(1.0) if "sm_share_ratio" in rows else np.ones(len(rows))
    return np.column_stack(
        [
            times[:, 1:] / np.maximum(times[:, :1], 1.0),
            np.log(np.maximum(times[:, 0], 1.0)),
            np.log(rows["batch_size"].to_numpy(dtype=float)),
            np.asarray(share, dtype=float),
            rows["workload"].str.contains("channels-last").to_numpy(dtype=float),
        ]
    )


def corrected(values: np.ndarray, columns: np.ndarray, families: np.ndarray, folds: int) -> np.ndarray:
    """[n] remaining errors after correction by trees that never saw the row's family."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import GroupKFold

    left = values.copy()
    for train, test in GroupKFold(folds).split(columns, values, families):
        trees = HistGradientBoostingRegressor(max_iter=200, learning_rate=0.05, random_state=0)
        left[test] -= trees.fit(columns[train], values[train]).predict(columns[test])
    return left


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of imported tables")
    parser.add_argument("--source", default="timm", help="source of the rows (default: %(default)s)")
    parser.add_argument(
        "--mode",
        choices=("training", "inference"),
        default="training",
        help="training or inference jobs (default: %(default)s)",
    )
    parser.add_argument("--device", help="only rows of this device")
    parser.add_argument("--rows", type=int, help="sample this many rows")
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, f"residuals_{options.source}_{options.mode}", "device", "rows")
    solo = read_table(options.data, "solo")
    chosen = solo[(solo.source == options.source) & (solo["mode"] == options.mode) & solo.step_time_s.notna()]
    if options.device:
        chosen = chosen[chosen.device == options.device]
    if options.rows and options.rows < len(chosen):
        chosen = chosen.sample(options.rows, random_state=0)
    values = residuals(chosen)
    answered = np.isfinite(values)
    rows, values = chosen[answered], values[answered]
    if not len(rows):
        raise SystemExit("no row of that source, mode and device has an answer")
    families = np.array([family_of(name) for name in rows.architecture.astype(str)])
    left = corrected(values, features(rows), families, min(10, len(set(families))))
    by_network = rows.assign(error=values).groupby("architecture", observed=True).error
    figures: dict[str, Any] = {
        "source": options.source, "mode": options.mode, "device": options.device, "rows": len(rows),
        "mape_percent": percent(values), "mape_percent_with_trees": percent(left),
        "standard_deviation_between_networks": float(by_network.mean().std()),
        "standard_deviation_within_a_network": float(by_network.std().dropna().mean()),
    }  # fmt: skip
    groups = rows.assign(error=values).groupby(["campaign", "device"], observed=True).error
    figures |= {f"mape_percent_{campaign}_{device}": percent(group) for (campaign, device), group in groups}
    for name, value in figures.items():
        print(f"{name:44} {value}")
    record(stem, figures)


def percent(values: np.ndarray | pd.Series) -> float:
    """MAPE of errors given as logs of measured over predicted."""
    return float(100 * np.abs(np.expm1(-values)).mean())


if __name__ == "__main__":
    run_benchmark(__file__, main)
