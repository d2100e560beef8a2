"""Measuring needs only torch (and its filelock), numpy, pandas, pyarrow, psutil, NVML, typer and rich."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import profiling
from tests.waiting import LONG_S

_PROGRAM = """
import sys
# None in sys.modules: to import it fails, to look for it finds nothing, as where it is not installed
sys.modules.update(dict.fromkeys(sys.argv[1].split()))
import profiling.__main__, profiling.campaign.export, profiling.measure.run, profiling.measure.member
import profiling.measure.operators, profiling.measure.operator_times, profiling.measure.ddp
import profiling.measure.host_input, profiling.measure.cached_prefix
from profiling.capture import graph_for
from profiling.devices import list_devices
from profiling.workload import Workload
from profiling.zoo import build
build(Workload("ppo-lunarlander"), "cpu").step()
graph_for(Workload("ppo-lunarlander"))
list_devices()
"""
_ABSENT = (
    "datasets models predictor scheduling serving scipy sklearn safetensors mlflow onnx onnxruntime onnxscript pandera "
    "yaml matplotlib fastapi uvicorn msgspec prometheus_client structlog sqlalchemy alembic jinja2 httpx torch_geometric"
)


def test_profiling_imports_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, _ABSENT], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode == 0, done.stderr


_PRESENT = {
    "torch",
    "numpy",
    "pandas",
    "pyarrow",
    "psutil",
    "pynvml",
    "typer",
    "rich",
    "profiling",
    "filelock",
}
# Reading ONNX and device files and drawing graphs need the full installation; libraries of networks are
# installed when their collections are rebuilt.
_ELSEWHERE = {
    "capture/onnx.py": {"onnx"},
    "capture/onnx_branches.py": {"onnx"},
    "capture/onnx_inputs.py": {"onnx"},
    "capture/onnx_reader.py": {"onnx", "google"},
    "capture/onnx_values.py": {"onnx"},
    "capture/onnx_worker.py": {"onnx"},
    "capture/onnx_limits.py": {"onnx"},
    "capture/plot.py": {"matplotlib"},
    "collections/sources/huggingface.py": {"transformers"},
    "collections/sources/timm.py": {"timm"},
    "collections/sources/timm_reparameterized.py": {"timm"},
    "collections/sources/torchvision.py": {"torchvision"},
    "devices/catalogue.py": {"yaml"},
    "ray_workers.py": {"ray"},
    "yaml_files.py": {"yaml"},
}


def test_no_file_of_profiling_imports_another_package() -> None:
    """Checks every import of every file, also inside functions; a list of absent packages could have gaps."""
    root = Path(profiling.__file__).parent
    strangers = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
        strange = names - _PRESENT - set(sys.stdlib_module_names) - _ELSEWHERE.get(name, set())
        if strange:
            strangers[name] = strange
    assert strangers == {}
