"""Mean and deviation of member features over the jobs in some tables: the scale of distances between jobs.

    python -m benchmarks.member_scale DIR

writes `predictor/gaussian_process/member_scale.json` from the campaigns that a shipped model may learn from.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.command_line import benchmark_parser, run_benchmark

TARGET = Path(__file__).parents[1] / "predictor" / "gaussian_process" / "member_scale.json"
CAMPAIGNS = ("gavel-2019", "gavel-2020")


def main() -> None:
    from datasets.tables import read_all
    from predictor.evaluation.protocols.few_shot.runner import resident_sets
    from predictor.examples.featurizer import shared_featurizer
    from predictor.gaussian_process.measured import MeasuredRows
    from predictor.gaussian_process.members import MemberScale
    from profiling.files import write_json

    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("tables", metavar="DIR", help="folder of imported tables")
    tables = read_all(parser.parse_args().tables)
    examples = resident_sets(tables["colocation"], tables["solo"], CAMPAIGNS)
    scale = MemberScale.fit(MeasuredRows.of(examples, shared_featurizer()).features)
    values = {
        name: [float(f"{v:.6g}") if np.isfinite(v) else None for v in getattr(scale, name)]
        for name in ("mean", "deviation")
    }
    print(f"written: {write_json(TARGET, {'campaigns': list(CAMPAIGNS), **values}).name}")


if __name__ == "__main__":
    run_benchmark(__file__, main)
