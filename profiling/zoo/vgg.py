"""VGG (Simonyan and Zisserman 2015): with batch norm for CIFAR, and without for ImageNet."""

from __future__ import annotations

from torch import Tensor, nn

from profiling.zoo.entry import ZooEntry
from profiling.zoo.tasks import CLASSIFY, images

_WIDTHS = {
    11: (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    19: (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0),
}


def _features(depth: int, normalise: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 3
    for width in _WIDTHS[depth]:
        if width == 0:
            layers.append(nn.MaxPool2d(2, 2))
            continue
        layers.append(nn.Conv2d(inputs, width, 3, padding=1))
        if normalise:
            layers.append(nn.BatchNorm2d(width))
        layers.append(nn.ReLU(inplace=True))
        inputs = width
    return nn.Sequential(*layers)


class SmallVGG(nn.Module):
    """For 32x32 images, with one linear layer after the last pooling."""

    def __init__(self, depth: int, classes: int) -> None:
        super().__init__()
        self.features = _features(depth, normalise=True)
        self.classifier = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class VGG(nn.Module):
    """For 224x224 images, with three linear layers."""

    def __init__(self, depth: int, classes: int) -> None:
        super().__init__()
        self.features = _features(depth, normalise=False)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 49, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


ENTRIES = (
    ZooEntry(
        name="vgg11-cifar",
        family="vgg",
        model=lambda: SmallVGG(11, 10),
        batch=images(32, 10),
        phases=CLASSIFY,
        batch_size=128,
        optimizer="momentum",
        parameters=9_231_114,
        source="github.com/kuangliu/pytorch-cifar, VGG11",
        description="VGG-11 with batch normalisation on 32x32 images",
    ),
    ZooEntry(
        name="vgg19-cifar",
        family="vgg",
        model=lambda: SmallVGG(19, 10),
        batch=images(32, 10),
        phases=CLASSIFY,
        batch_size=128,
        optimizer="momentum",
        parameters=20_040_522,
        source="github.com/kuangliu/pytorch-cifar, VGG19",
        description="VGG-19 with batch normalisation on 32x32 images",
    ),
    ZooEntry(
        name="vgg19-imagenet",
        family="vgg",
        model=lambda: VGG(19, 1000),
        batch=images(224, 1000),
        phases=CLASSIFY,
        batch_size=32,
        optimizer="momentum",
        parameters=143_667_240,
        source="torchvision vgg19: num_params of VGG19_Weights",
        description="VGG-19 on 224x224 images",
    ),
)
