"""Generates `cotenant_client` from openapi.json while a wheel is built."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
# Modules of the service that need nothing else of it; an sdist contains copies.
_IN_REPOSITORY = HERE.parents[1] / "serving" / "integrations"
MODULES = [
    copy if (copy := HERE / name).exists() else _IN_REPOSITORY / name
    for name in ("total_timeout.py", "step_times.py", "gpu_usage.py")
]


def version() -> str:
    """The service's version, which the client shares."""
    return json.loads((HERE / "openapi.json").read_text())["info"]["version"]


class ClientBuildHook(BuildHookInterface):
    """Adds the generated package to the wheel; nothing is written beside the sources."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.folder = TemporaryDirectory()
        package = Path(self.folder.name) / "cotenant_client"
        config = Path(self.folder.name) / "config.yaml"
        config.write_text(json.dumps({"post_hooks": []}))
        done = subprocess.run(
            [sys.executable, "-m", "openapi_python_client", "generate", "--path", str(HERE / "openapi.json"),
             "--meta", "none", "--config", str(config), "--output-path", str(package), "--fail-on-warning"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"openapi-python-client failed:\n{done.stdout}{done.stderr}")
        for module in MODULES:
            shutil.copy(module, package)
        build_data["force_include"][str(package)] = "cotenant_client"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.folder.cleanup()
