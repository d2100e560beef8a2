"""Finds entries by name, and builds a `TrainingJob` from a `Workload`. Imports torch, unlike `listing`."""

from __future__ import annotations

import importlib

import torch

from profiling.errors import UnavailableError
from profiling.training import TrainingJob, prepared_job
from profiling.workload import Workload
from profiling.zoo.entry import ZooEntry
from profiling.zoo.listing import get_model, resolve

FAMILIES = (
    "resnet",
    "mobilenet",
    "efficientnet",
    "vgg",
    "dcgan",
    "language_model",
    "recommendation",
    "pointnet",
    "bert",
    "bert_mlm",
    "transformer",
    "cyclegan",
    "reinforcement",
    "vit",
    "yolov3",
    "densenet",
    "googlenet",
    "inception",
    "shufflenet",
    "deepspeech2",
    "gnmt",
    "unet3d",
    "gpt",
    "decoder",
    "t5",
    "whisper",
    "convnext",
    "swin",
    "efficientnetv2",
    "stable_diffusion",
    "dlrm",
    "keras_vision",
    "keras_sequence",
    "keras_speech",
    "keras_molecules",
    "keras_cyclegan",
)


def all_entries() -> list[ZooEntry]:
    """All entries, family by family. Imports every family."""
    return [entry for family in FAMILIES for entry in _family(family)]


def get_entry(name: str) -> ZooEntry:
    """The entry with that name or alias (see `profiling.zoo.aliases`).

    Raises:
        UnknownNameError: there is none; the message lists similar names.
    """
    model = get_model(name)
    return next(entry for entry in _family(model.family) if entry.name == model.name)


def _family(name: str) -> tuple[ZooEntry, ...]:
    entries: tuple[ZooEntry, ...] = importlib.import_module(f"profiling.zoo.{name}").ENTRIES
    return entries


def build(workload: Workload, device: str = "cpu") -> TrainingJob:
    """The training job of a zoo workload on `cpu`, `cuda` or `meta` (shapes only, no memory).

    `amp` is autocast with FP32 parameters; in `fp16` and `bf16`, parameters and inputs have that type; `tf32` differs
    from `fp32` only on a GPU that supports it, and `fp8` is for `meta`.

    Raises:
        UnknownNameError: the model is not in the zoo.
        InputError: an option is out of range for the model, such as `frozen_prefix`.
        UnavailableError: this machine has no such device.
    """
    full = resolve(workload)
    entry = get_entry(full.model)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UnavailableError("no CUDA device is available", hint="use --device cpu")
    assert full.batch_size is not None
    with torch.device(device):
        model = entry.model()
        batch = entry.batch(full.batch_size, full.sequence_length or 0)
    return prepared_job(model, batch, entry.phases, full.batch_size, full)
