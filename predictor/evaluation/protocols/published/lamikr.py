"""torchvision's CNNs on eight devices: a device held out, and a network held out on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datasets.splits import Fold
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.protocol import Protocol
from predictor.evaluation.protocols.published.steps import OF_STEPS, TARGETS
from predictor.evaluation.protocols.published.timm import training
from predictor.evaluation.protocols.registry import Contender, register

if TYPE_CHECKING:
    import pandas as pd

    from predictor.evaluation.protocols.protocol import Tables

_BY = ("architecture", "device", "mode", "precision")


def fp32_training(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Rows of training steps in FP32 and TF32."""
    rows = training(frame, tables)
    return rows[rows["precision"].isin(("fp32", "tf32"))]


def one_by_one(frame: pd.DataFrame, _seed: int) -> list[Fold]:
    """A fold for each network on each device: only its time there is unknown."""
    ids = sorted(frame["set_id"])
    return [
        Fold(held_out, tuple(other for other in ids if other != held_out), (held_out,)) for held_out in ids
    ]


def _transfer() -> FoldPredictor:
    from models.baselines.transfer import TransferPredictor

    # FP32 runs as TF32 on devices with tensor cores for it: that is a property of the device, not another
    # setting.
    return TransferPredictor(("architecture",), ("device",))


register(
    Contender(
        "transfer-between-devices",
        _transfer,
        targets=TARGETS,
        protocols=frozenset({"lamikr-network-on-device"}),
        partial=True,
        seconds_per_fold=0.02,
    )
)

PROTOCOLS = (
    Protocol(
        "lamikr-by-device",
        "step of torchvision's CNNs on a device never seen, training and inference, fp32, fp16 and fp64",
        ("lamikr",),
        "by-device",
        target="solo_step_time_s",
        unit="device",
        known=("workloads",),
        contenders=OF_STEPS,
        by=_BY,
    ),
    Protocol(
        "lamikr-network-on-device",
        "fp32 training step of a network on a device where others ran, and that ran on others",
        ("lamikr",),
        "one network on one device",
        target="solo_step_time_s",
        choose=fp32_training,
        folds=one_by_one,
        contenders=("constant", "transfer-between-devices", "cost-model-cells"),
        by=("architecture", "device"),
    ),
)
