"""Peak training memory with networks held out.

There are points, and bounds from batch sizes that did and did not run.
"""

from __future__ import annotations

import pandas as pd

from datasets.bundle import Bundle
from datasets.families import family_of
from datasets.sources import SOURCES
from datasets.splits import Fold, deal
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.features import per_step
from predictor.evaluation.protocols.protocol import Protocol, Tables
from predictor.evaluation.protocols.registry import Contender, register

_TARGETS = ("memory_bytes",)
_FOLDS = 10
OF_MEMORY = ("constant", "linear-memory", "graph-memory", "shipped-memory")


def on_device(frame: pd.DataFrame, _tables: Tables) -> pd.DataFrame:
    """Rows of the memory that a process takes on the device.

    Pools and allocator peaks are other quantities.
    """
    return frame[frame["scope"] == "device"]


def with_side(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """The same, with `part` (family, and whether its rows may be learned from) as the unit of the split."""
    rows = on_device(frame, tables)
    may_learn = rows["source"].map(lambda name: name not in SOURCES or SOURCES[name].may_ship)
    families = rows["architecture"].map(family_of)
    return rows.assign(
        family=families, part=families + may_learn.map({True: "", False: " (evaluation only)"})
    )


def families_left_out(frame: pd.DataFrame, seed: int) -> list[Fold]:
    """Families are held out across all sources; rows for evaluation only are never learned from."""
    fold_of = deal(frame["family"], min(_FOLDS, frame["family"].nunique()), seed)
    parts = frame.drop_duplicates("part").set_index("part")
    where, learned = parts["family"].map(fold_of), ~parts.index.str.endswith("(evaluation only)")
    return [
        Fold(
            name,
            tuple(sorted(parts.index[(where != name) & learned])),
            tuple(sorted(parts.index[where == name])),
        )
        for name in sorted(set(fold_of.values()))
    ]


def _totals(bundle: Bundle) -> pd.DataFrame:
    return per_step(bundle)[["activations", "parameters"]]


def _estimate(bundle: Bundle) -> pd.DataFrame:
    return bundle.rows[["estimate_bytes"]].astype("float64")


def _linear() -> FoldPredictor:
    from models.baselines.linear import LinearPredictor

    return LinearPredictor(_totals, constants=("device",))


def _linear_one_constant() -> FoldPredictor:
    from models.baselines.linear import LinearPredictor

    return LinearPredictor(_totals)


def _of_estimate() -> FoldPredictor:
    from models.baselines.linear import LinearPredictor

    return LinearPredictor(_estimate)


register(
    Contender("linear-memory", _linear, version="2", targets=_TARGETS, partial=True, seconds_per_fold=0.5)
)
register(
    Contender(
        "linear-one-constant",
        _linear_one_constant,
        version="2",
        targets=_TARGETS,
        partial=True,
        seconds_per_fold=0.5,
    )
)
register(
    Contender("estimate", _of_estimate, version="2", targets=_TARGETS, partial=True, seconds_per_fold=0.5)
)

PROTOCOLS = (
    Protocol(
        "memory-by-model",
        "peak memory of a family of networks never seen; timm's brackets as bounds; GPUMemNet scored, not learned from",
        ("schedtune", "timm", "gpumemnet"),
        "a tenth of the families",
        target="memory_bytes",
        choose=with_side,
        unit="part",
        folds=families_left_out,
        known=("workloads",),
        contenders=(*OF_MEMORY, "linear-one-constant"),
        by=("family", "device", "campaign"),
    ),
    Protocol(
        "memory-schedtune-by-model",
        "peak memory of a torchvision CNN never seen, on devices that others ran on",
        ("schedtune",),
        "by-model",
        target="memory_bytes",
        unit="architecture",
        known=("workloads",),
        contenders=OF_MEMORY,
        by=("architecture", "device"),
    ),
    Protocol(
        "memory-schedtune-by-device",
        "peak memory on a device never seen",
        ("schedtune",),
        "by-device",
        target="memory_bytes",
        unit="device",
        known=("workloads",),
        contenders=(*OF_MEMORY, "linear-one-constant"),
        by=("architecture", "device"),
    ),
    Protocol(
        "memory-gpumemnet-by-family",
        "peak memory of a family of timm's networks never seen, others of the same source learned from",
        ("gpumemnet",),
        "by-family",
        target="memory_bytes",
        unit="family",
        known=("workloads",),
        contenders=(*OF_MEMORY, "estimate"),
        by=("family",),
    ),
)
