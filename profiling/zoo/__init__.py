"""Models of public measurements and other common ones, in plain `torch.nn`, with their training tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from profiling.zoo.listing import get_model, is_model, near_models, resolve, zoo_names

if TYPE_CHECKING:
    from profiling.zoo.registry import build as build
    from profiling.zoo.registry import get_entry as get_entry

__all__ = [
    "build",
    "get_entry",
    "get_model",
    "is_model",
    "near_models",
    "resolve",
    "zoo_names",
]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and callers that need only names and defaults should not wait for it.
    if name in ("build", "get_entry"):
        from profiling.zoo import registry

        return getattr(registry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
