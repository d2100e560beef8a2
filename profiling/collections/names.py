"""The collections of graphs, by the first part of a model's name: `timm/resnet50`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Collection:
    """One library's networks.

    Attributes:
        source: module of `profiling.collections.sources` that builds them.
        library: what must be installed for rebuilding only.
        size_option: option of a job that selects one of the stored sizes; empty if there is none.
        batch_size: default number of samples per step.
        description: one line.
    """

    source: str
    library: str
    size_option: str
    batch_size: int
    description: str


COLLECTIONS: dict[str, Collection] = {
    "timm": Collection(
        "timm", "timm==1.0.31", "image_size", 32, "PyTorch Image Models 1.0.31, all registered names"
    ),
    "timm-reparameterized": Collection(
        "timm_reparameterized",
        "timm==1.0.31",
        "image_size",
        32,
        "those of timm/ that deployment merges into fewer layers (RepVGG, MobileOne, FastViT, RepViT, ...)",
    ),
    "timm-fast-norm": Collection(
        "timm_fast_norm",
        "timm==1.0.31",
        "image_size",
        32,
        "those of timm/ whose layer and group norms `set_fast_norm` keeps in half precision under AMP",
    ),
    "timm-0.6": Collection(
        "timm", "timm==0.6.13", "image_size", 32, "PyTorch Image Models 0.6.13, all registered names"
    ),
    "torchvision": Collection(
        "torchvision", "torchvision==0.16.2", "image_size", 32, "classification networks of torchvision"
    ),
    "nasbench": Collection(
        "nasbench", "", "", 256, "NAS-Bench-101 networks for CIFAR-10 (Ying et al., ICML 2019), by their hash"
    ),
    "hf": Collection(
        "huggingface", "transformers>=5", "sequence_length", 8, "Hugging Face language models, by their size"
    ),
}


def collection_of(model: str) -> str:
    """Name of the collection that a model's name starts with; empty if there is none."""
    head, slash, _ = model.partition("/")
    return head if slash and head in COLLECTIONS else ""
