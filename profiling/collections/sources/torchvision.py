"""Classification and segmentation networks of torchvision.

They are recorded at 224 pixels and at the size of their default weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.collections.entry import Entry, Maker
from profiling.collections.lazy import lazy_weights
from profiling.training import Phase, TrainingJob

_DEFAULT_SIZE = 224


def entries() -> Iterator[Entry]:
    import torchvision  # type: ignore[import-not-found]

    models = torchvision.models
    for module in (models, models.segmentation):
        for name in sorted(models.list_models(module)):
            sizes = (_DEFAULT_SIZE, *_sizes(name, models))
            family = models.get_model_builder(name).__module__.rpartition(".")[2]
            yield Entry(name, family, tuple(dict.fromkeys(sizes)), partial(_makers, name))


def _sizes(name: str, models: Any) -> list[int]:
    """Sizes at which a network's published weights are used."""
    crops = []
    for weights in models.get_model_weights(name):
        size = getattr(weights.transforms, "keywords", {}).get("crop_size")
        if size:
            crops.append(int(size[0] if isinstance(size, list | tuple) else size))
    return crops


def _makers(name: str, size: int) -> Iterator[Maker]:
    import torchvision

    module = torchvision.models.get_model_builder(name).__module__
    plain = {"weights_backbone": None} if "segmentation" in module else {}
    # Auxiliary classifiers cannot read the small feature maps of images below their usual size.
    for options in (plain, {"image_size": size}, {"aux_logits": False}):
        for device in ("meta", "cpu"):
            try:
                with lazy_weights(device):
                    model = torchvision.models.get_model(name, weights=None, **options).to("meta")
            except Exception:  # another way to build it may work
                continue
            model.train()
            yield partial(_job, model, size)


def _job(model: nn.Module, size: int, batch_size: int, precision: str) -> TrainingJob:
    with torch.device("meta"):
        batch = {
            "image": torch.empty(batch_size, 3, size, size),
            "label": torch.empty(batch_size, dtype=torch.int64),
            "mask": torch.empty(batch_size, size, size, dtype=torch.int64),
        }
    is_segmentation = "segmentation" in type(model).__module__
    del batch["label" if is_segmentation else "mask"]
    return TrainingJob(model, batch, (Phase(_loss),), batch_size=batch_size, precision=precision)


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    output = model(batch["image"])
    if isinstance(output, dict):
        output = output["out"]
    if isinstance(output, tuple):  # auxiliary classifiers run but are not trained
        output = output[0]
    return F.cross_entropy(output, batch["mask"] if "mask" in batch else batch["label"])
