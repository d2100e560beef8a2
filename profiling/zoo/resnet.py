"""Residual networks (He et al. 2016) for CIFAR and ImageNet, and wide ones (Zagoruyko and Komodakis 2016)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import CLASSIFY, images


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, base: int = 64) -> None:  # noqa: ARG002 (as `Bottleneck`)
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x), inplace=True)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, with the stride in the 3x3 convolution."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, base: int = 64) -> None:
        super().__init__()
        outputs = width * self.expansion
        inner = width * base // 64
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.shortcut(x), inplace=True)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Four stages of blocks.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        depths: blocks per stage.
        classes: outputs.
        small_input: 3x3 stem without pooling, for 32x32 images, in place of a strided 7x7 with max pooling.
        base: width of a bottleneck's inner convolutions in the first stage.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, ...],
        classes: int,
        small_input: bool = False,
        base: int = 64,
    ) -> None:
        super().__init__()
        if small_input:
            self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        else:
            self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.pool = nn.Identity() if small_input else nn.MaxPool2d(3, 2, 1)
        stages = []
        inputs = 64
        for stage, depth in enumerate(depths):
            blocks = []
            for i in range(depth):
                blocks.append(block(inputs, 64 << stage, 2 if stage and not i else 1, base))
                inputs = (64 << stage) * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.stages(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class WideBlock(nn.Module):
    """Pre-activation block of a wide residual network."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, 1)
        self.dropout = dropout
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = F.dropout(self.conv1(F.relu(self.bn1(x))), self.dropout, self.training)
        out = self.conv2(F.relu(self.bn2(out)))
        return out + self.shortcut(x)


class WideResNet(nn.Module):
    """WRN-`depth`-`widen` for CIFAR."""

    def __init__(self, depth: int, widen: int, classes: int, dropout: float = 0.3) -> None:
        super().__init__()
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1)
        blocks = []
        for stage in range(3):
            for i in range((depth - 4) // 6):
                inputs = widths[stage] if i == 0 else widths[stage + 1]
                blocks.append(WideBlock(inputs, widths[stage + 1], 2 if stage and not i else 1, dropout))
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(widths[3])
        self.fc = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.blocks(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


ENTRIES = (
    ZooEntry(
        name="resnet18-cifar",
        family="resnet",
        model=lambda: ResNet(BasicBlock, (2, 2, 2, 2), 10, small_input=True),
        batch=images(32, 10),
        phases=CLASSIFY,
        batch_size=128,
        optimizer="momentum",
        parameters=11_173_962,
        source="github.com/kuangliu/pytorch-cifar, ResNet18",
        description="ResNet-18 with a 3x3 stem on 32x32 images",
    ),
    ZooEntry(
        name="resnet50-cifar",
        family="resnet",
        model=lambda: ResNet(Bottleneck, (3, 4, 6, 3), 10, small_input=True),
        batch=images(32, 10),
        phases=CLASSIFY,
        batch_size=128,
        optimizer="momentum",
        parameters=23_520_842,
        source="github.com/kuangliu/pytorch-cifar, ResNet50",
        description="ResNet-50 with a 3x3 stem on 32x32 images",
    ),
    ZooEntry(
        name="resnet50-imagenet",
        family="resnet",
        model=lambda: ResNet(Bottleneck, (3, 4, 6, 3), 1000),
        batch=images(224, 1000),
        phases=CLASSIFY,
        batch_size=64,
        optimizer="momentum",
        parameters=25_557_032,
        source="torchvision resnet50: num_params of ResNet50_Weights",
        description="ResNet-50 on 224x224 images",
    ),
    ZooEntry(
        name="wideresnet50-imagenet",
        family="resnet",
        model=lambda: ResNet(Bottleneck, (3, 4, 6, 3), 1000, base=128),
        batch=images(224, 1000),
        phases=CLASSIFY,
        batch_size=32,
        optimizer="momentum",
        parameters=68_883_240,
        source="torchvision wide_resnet50_2: num_params of Wide_ResNet50_2_Weights",
        description="Wide ResNet-50-2 on 224x224 images",
    ),
    ZooEntry(
        name="wideresnet-cifar",
        family="resnet",
        model=lambda: WideResNet(28, 10, 10),
        batch=images(32, 10),
        phases=CLASSIFY,
        batch_size=128,
        optimizer="momentum",
        parameters=36_489_290,
        source="github.com/meliketoy/wide-resnet.pytorch: WRN-28-10 with biased convolutions, 36.5 M",
        description="WRN-28-10 on 32x32 images",
    ),
)
