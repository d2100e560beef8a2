"""timm's networks alone, with families or devices held out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datasets.families import family_of
from datasets.splits import Fold, deal
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.protocol import Protocol, Tables
from predictor.evaluation.protocols.published.steps import OF_NEIGHBOURS, OF_STEPS, SETTING, TARGETS
from predictor.evaluation.protocols.registry import Contender, register

if TYPE_CHECKING:
    import pandas as pd

_BY = ("family", "device", "campaign", "memory_layout", "compiler")
_FOLDS = 5


def training(frame: pd.DataFrame, _tables: Tables) -> pd.DataFrame:
    """Rows of training steps."""
    return frame[frame["mode"] == "training"]


def inference(frame: pd.DataFrame, _tables: Tables) -> pd.DataFrame:
    """Rows of inference steps; `network` is the bare name, because collections differ between releases."""
    rows = frame[frame["mode"] == "inference"]
    return rows.assign(network=rows["architecture"].str.rpartition("/")[2])


def inference_of_training(frame: pd.DataFrame, _tables: Tables) -> pd.DataFrame:
    """Inference steps of the release of PyTorch nearest to that of the training steps, on the same card."""
    is_nearest = (frame["device"] == "rtx-3090") & (frame["campaign"] == "timm-pt113-cu117")
    return frame[is_nearest & (frame["mode"] == "inference")]


def inference_cells(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Inference rows, with the family on its device as their `cell`."""
    rows = inference(frame, tables)
    return rows.assign(cell=rows["device"] + " " + rows["architecture"].map(family_of))


def cells_left_out(frame: pd.DataFrame, seed: int) -> list[Fold]:
    """Hold out a part of the families on each device in turn.

    The same networks on other devices stay in training.
    """
    fold_of = deal(frame["family"], _FOLDS, seed)
    cells = frame.drop_duplicates("cell").set_index("cell")
    part = cells["device"] + " " + cells["family"].map(fold_of)
    return [
        Fold(name, *(tuple(sorted(cells.index[rows])) for rows in (part != name, part == name)))
        for name in sorted(set(part))
    ]


def _transfer() -> FoldPredictor:
    from models.baselines.transfer import TransferPredictor

    return TransferPredictor(("network", "image_size"), SETTING)


register(Contender("transfer", _transfer, version="2", targets=TARGETS, partial=True, seconds_per_fold=1))

PROTOCOLS = (
    Protocol(
        "timm-train-by-family",
        "training step of a family of networks never seen, RTX 3090",
        ("timm",),
        "by-family",
        target="solo_step_time_s",
        choose=training,
        related=inference_of_training,
        unit="family",
        known=("workloads",),
        contenders=(*OF_STEPS, *OF_NEIGHBOURS, "cost-model-joint"),
        by=_BY,
    ),
    Protocol(
        "timm-infer-by-family",
        "inference step of a family of networks never seen, four devices, eager and compiled",
        ("timm",),
        "by-family",
        target="solo_step_time_s",
        choose=inference,
        unit="family",
        known=("workloads",),
        contenders=OF_STEPS,
        by=_BY,
    ),
    Protocol(
        "timm-infer-by-device",
        "inference step on a device never seen",
        ("timm",),
        "by-device",
        target="solo_step_time_s",
        choose=inference,
        unit="device",
        known=("workloads",),
        contenders=(*OF_STEPS, "cost-model-networks"),
        by=_BY,
    ),
    Protocol(
        "timm-infer-network-on-device",
        "inference step of networks that ran on other devices, on one where others ran",
        ("timm",),
        "a fifth of the families on one device",
        target="solo_step_time_s",
        choose=inference_cells,
        unit="cell",
        folds=cells_left_out,
        known=("workloads",),
        contenders=(*OF_STEPS, "transfer"),
        by=_BY,
    ),
)
