"""Measuring runs where only torch, numpy, pandas, pyarrow, psutil, nvidia-ml-py, typer and rich are installed."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
# None in sys.modules: to import it fails, to look for it finds nothing, as where it is not installed
sys.modules.update(dict.fromkeys(sys.argv[1].split()))
import profiling.__main__, profiling.campaign.export, profiling.measure.run, profiling.measure.member
import profiling.measure.operators, profiling.measure.operator_times, profiling.measure.ddp
import profiling.measure.host_input, profiling.measure.cached_prefix
from profiling.capture import graph_for
from profiling.workload import Workload
from profiling.zoo import build
build(Workload("ppo-lunarlander"), "cpu").step()
graph_for(Workload("ppo-lunarlander"))
"""
_ABSENT = (
    "datasets models predictor scheduling serving scipy sklearn safetensors mlflow onnx onnxruntime onnxscript pandera "
    "yaml matplotlib fastapi uvicorn msgspec prometheus_client structlog sqlalchemy alembic jinja2 httpx torch_geometric"
)


def test_profiling_imports_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, _ABSENT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
