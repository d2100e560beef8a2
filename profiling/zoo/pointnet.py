"""PointNet (Qi et al. 2017) for classification, with input transform but without feature transform."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.training import Phase
from profiling.zoo.entry import ZooEntry

POINTS, CLASSES = 2_500, 16


class _PointFeatures(nn.Module):
    """MLP shared by all points, then a maximum over points: (batch, 3, points) to (batch, 1024)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, 64, 1)
        self.conv2 = nn.Conv1d(64, 128, 1)
        self.conv3 = nn.Conv1d(128, 1024, 1)
        self.bn1 = nn.BatchNorm1d(64)
        self.bn2 = nn.BatchNorm1d(128)
        self.bn3 = nn.BatchNorm1d(1024)
        self.last_relu = False

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        return torch.max(F.relu(x) if self.last_relu else x, 2)[0]


class _Head(nn.Module):
    """1024 to 512 to 256 to outputs."""

    def __init__(self, outputs: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(1024, 512)
        self.fc2 = nn.Linear(512, 256)
        self.fc3 = nn.Linear(256, outputs)
        self.bn1 = nn.BatchNorm1d(512)
        self.bn2 = nn.BatchNorm1d(256)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.fc1(x)))
        x = F.relu(self.bn2(self.dropout(self.fc2(x))))
        return self.fc3(x)


class PointNet(nn.Module):
    """Points (batch, 3, n) to class scores; a small network first predicts a 3x3 transform."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.transform_features = _PointFeatures()
        self.transform_features.last_relu = True
        self.transform_head = _Head(9, 0.0)
        self.features = _PointFeatures()
        self.head = _Head(classes, 0.3)

    def forward(self, points: Tensor) -> Tensor:
        transform = self.transform_head(self.transform_features(points)).view(-1, 3, 3)
        transform = transform + torch.eye(3, dtype=points.dtype, device=points.device)
        points = torch.bmm(points.transpose(2, 1), transform).transpose(2, 1)
        return F.log_softmax(self.head(self.features(points)), dim=1)


def _batch(batch_size: int, _: int) -> dict[str, Tensor]:
    return {
        "points": torch.randn(batch_size, 3, POINTS),
        "label": torch.randint(CLASSES, (batch_size,)),
    }


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    return F.nll_loss(model(batch["points"]), batch["label"])


ENTRIES = (
    ZooEntry(
        name="pointnet-2500",
        family="pointnet",
        model=lambda: PointNet(CLASSES),
        batch=_batch,
        phases=(Phase(_loss),),
        batch_size=64,
        optimizer="adam",
        parameters=1_607_961,
        source="github.com/fxia22/pointnet.pytorch, PointNetCls with k = 16",
        description="PointNet classifier on 2,500 points",
    ),
)
