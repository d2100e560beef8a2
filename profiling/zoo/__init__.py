"""Models of the public measurements and of every day, in plain `torch.nn`, with their training tasks."""

from profiling.training import atomic_layers
from profiling.zoo.entry import ZooEntry
from profiling.zoo.registry import build, get_entry, layer_names, resolve, zoo_names

__all__ = ["ZooEntry", "atomic_layers", "build", "get_entry", "layer_names", "resolve", "zoo_names"]
