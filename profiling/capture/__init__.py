"""Captures models as computation graphs, without weights, a GPU or computing anything."""

from __future__ import annotations

from typing import Any

_WHERE = {
    "OnnxLimits": "onnx_limits",
    "capture_factory": "factory",
    "capture_job": "step",
    "capture_module": "module",
    "capture_onnx": "onnx",
    "capture_pipedream": "pipedream",
    "capture_zoo": "source",
    "fold_repeats": "fold",
    "graph_for": "source",
    "local_workload": "local",
    "named_workload": "naming",
    "register_graph": "cache",
    "stated_options": "local",
}

__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Import on first use, because torch and onnx take seconds and most callers need only one of them."""
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(f"profiling.capture.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
