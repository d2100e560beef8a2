"""What `make docs` builds the site from: the repository's pages as they lie, and reference pages made from the code.

    python docs/make_site.py build/docs

Pages keep their places, so that their links hold here and there alike.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs", "examples")
# Besides pages, what they show or point to.
LINKED = ("benchmarks/results", "clients/python/README.md", "predictor/checkpoints/default/MODEL_CARD.md")
# Modules whose docstrings are the Python reference.
MODULES = (
    "predictor.predictor",
    "predictor.types",
    "profiling.workload",
    "profiling.graph",
    "profiling.devices.spec",
    "profiling.errors",
    "scheduling.core.policy",
    "scheduling.core.job",
    "scheduling.core.state",
    "scheduling.core.snapshot",
    "scheduling.core.set_cache",
    "scheduling.placement.place",
    "scheduling.placement.decision",
    "scheduling.simulator.engine",
    "scheduling.simulator.result",
    "scheduling.pair_matrix",
)


def stage(target: Path) -> None:
    """Copy the pages and write the references into `target`."""
    shutil.rmtree(target, ignore_errors=True)
    for name in (*PAGES, *LINKED):
        source, copy = ROOT / name, target / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "make_site.py"))
        elif source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    reference = target / "docs" / "reference"
    reference.mkdir(parents=True)
    (reference / "cli.md").write_text(cli_reference())
    (reference / "http.md").write_text(http_reference())
    (reference / "python.md").write_text(python_reference())


def cli_reference() -> str:
    """Every command with its help, arguments and options."""
    from serving.cli.lazy import COMMANDS
    from serving.cli.main import app

    parts = ["# Command line", "Made from the commands; `cotenant COMMAND --help` says the same."]
    group: Any = _click(app)
    for name in COMMANDS:
        parts += _command(f"cotenant {name}", group.get_command(None, name), 2)
    return "\n\n".join(parts) + "\n"


def _click(app: Any) -> Any:
    import typer.main

    return typer.main.get_command(app)


def _command(title: str, command: Any, level: int) -> list[str]:
    parts = [f"{'#' * level} `{title}`"]
    if command.help:
        parts.append(inspect.cleandoc(command.help))
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        option = parameter.param_type_name == "option"
        words = [*parameter.opts, *parameter.secondary_opts] if option else [parameter.human_readable_name]
        names = ", ".join(f"`{word}`" for word in words)
        unset = parameter.default is None or parameter.default is False or callable(parameter.default)
        default = "" if unset or parameter.default == () else f"`{parameter.default}`"
        needed = "required" if parameter.required else default
        rows.append(f"| {names} | {needed} | {_cell(getattr(parameter, 'help', '') or '')} |")
    if rows:
        parts.append("\n".join(["| | default | |", "|---|---|---|", *rows]))
    for name, inner in getattr(command, "commands", {}).items():
        parts += _command(f"{title} {name}", inner, level + 1)
    return parts


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def http_reference() -> str:
    """Every route of the service with its method and summary, from OpenAPI."""
    from clients.openapi import document

    rows = [
        f"| `{method.upper()} {path}` | {_cell(operation.get('summary', ''))} |"
        for path, operations in sorted(document()["paths"].items())
        for method, operation in operations.items()
    ]
    return "\n".join(
        [
            "# HTTP",
            "",
            "Made from the OpenAPI document, which a running service has at `/openapi.json`, with a page to try it at `/docs`.",
            "Conventions, errors and examples are in [service.md](../service.md).",
            "",
            "| route | |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def python_reference() -> str:
    """Directives that mkdocstrings fills in from the docstrings."""
    head = (
        "# Python\n\nWhat other code may build on, from the docstrings. The folders are import packages; "
        "run from a checkout with its environment."
    )
    return "\n\n".join([head, *(f"## `{name}`\n\n::: {name}" for name in MODULES)]) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    stage(Path(sys.argv[1]))
