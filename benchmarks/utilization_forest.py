"""Accuracy of the forest that labels utilisation, on unseen models, compared with independent phases.

    python -m benchmarks.utilization_forest TABLES [--groups 5]

The forest teaches the network how the utilisation of synthetic pairs differs from that of members with
independent phases. Architectures of Lucid are left out in groups; on pairs with one of them, the error of
that difference is compared with assuming no difference, and with the mean difference of the others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import record
from models.colocation_network import NetworkConfig, member_width
from models.workload_encoder import WorkloadEncoder
from predictor.examples.cross_fit import ExampleFold, architecture_groups, cross_fit
from predictor.examples.examples import Examples, examples_of
from predictor.examples.featurizer import shared_featurizer
from predictor.fitted.model import CotenantModel, Scaler
from predictor.fitted.utilization import measured_difference
from predictor.training.teachers.forest import ForestTeacher
from predictor.training.teachers.mixtures import Seen

CAMPAIGN = "lucid"
TREES = 40


def main() -> None:
    """Print and record mean absolute errors, as shares of time."""
    from datasets.sets import read_sets, rows_of

    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("tables", type=Path, help="folder of imported tables")
    parser.add_argument(
        "--groups",
        type=int,
        default=5,
        help="groups of architectures that are left out in turn (default: %(default)s)",
    )
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "utilization_forest", "groups")
    colocation, solo = read_sets(options.tables)
    examples = examples_of(*(rows_of(table, [CAMPAIGN]) for table in (colocation, solo)))
    config = NetworkConfig()
    # The forest does not see the embedding, so the encoder need not be fitted.
    model = CotenantModel(
        config,
        (CAMPAIGN,),
        WorkloadEncoder(config.encoder).eval(),
        [],
        Scaler.neutral(member_width(config)),
        shared_featurizer(),
    )

    def seen(sets: Examples) -> Seen:
        variants, where = model.variants(sets.workloads, sets.devices)
        difference = measured_difference(model, sets).numpy().astype(np.float64)
        return Seen(sets, variants, where, sets.settings((CAMPAIGN,))[sets.set_index], difference)

    def errors(fold: ExampleFold) -> dict[str, np.ndarray]:
        train, test = seen(fold.train), seen(fold.test)
        teacher = ForestTeacher(config.encoder.embedding, TREES, 0)
        teacher.fit([train], np.log(fold.train.ratio))
        index = fold.test.set_index
        own = np.flatnonzero(np.bincount(index)[index] == 2)
        other = own.reshape(-1, 2)[:, ::-1].ravel()
        features, demand = test.variants.features[test.where], test.variants.demand[test.where]
        columns = teacher.columns(
            features[own], demand[own], features[other], demand[other], test.setting[own]
        )
        assert teacher.utilization_forest_ is not None
        guess = teacher.utilization_forest_.predict(columns).reshape(-1, 2).mean(1)
        measured = test.utilization_residual[index[own[::2]]]
        known = ~np.isnan(measured)
        mean = np.nanmean(train.utilization_residual)
        result = {"independent": measured, "mean": measured - mean, "forest": measured - guess}
        return {name: np.abs(values[known]) for name, values in result.items()}

    groups = architecture_groups(examples, options.groups)
    figures: dict[str, list[dict[str, np.ndarray]]] = {
        "all": [],
        **{", ".join(sorted(g.architectures)): [] for g in groups},
    }
    for group, parts in zip(groups, cross_fit(examples, groups, errors), strict=True):
        figures[", ".join(sorted(group.architectures))].append(parts)
        figures["all"].append(parts)
    table = {}
    for name, folds in figures.items():
        joined = {way: np.concatenate([p[way] for p in folds]) for way in ("independent", "mean", "forest")}
        table[name] = {
            "sets": len(joined["forest"]),
            **{f"{way}_mae": float(e.mean()) for way, e in joined.items()},
        }
        print(f"{name:60} " + ", ".join(f"{key} {value:.4g}" for key, value in table[name].items()))
    record(stem, table)


if __name__ == "__main__":
    run_benchmark(__file__, main)
