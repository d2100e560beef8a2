"""What `make docs` builds the site from: the repository's pages as they lie, and reference pages made from the code.

    python docs/make_site.py build/docs

Pages keep their places, so that their links hold here and there alike.
"""

from __future__ import annotations

import inspect
import json
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
    "predictor.freezing",
    "predictor.training.fine_tuning",
    "predictor.fitted.checkpoint",
    "profiling.workload",
    "profiling.graph",
    "profiling.capture",
    "profiling.devices.spec",
    "profiling.errors",
    "datasets.tables",
    "models.cost",
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
    """Every route of the service by tag: scope, parameters, body with its fields and example, and answers, from OpenAPI."""
    from clients.openapi import document

    api = document()
    parts = [
        "# HTTP",
        "Made from the OpenAPI document, which a running service has at `/openapi.json`, with a page to try it at `/docs`.",
        "Conventions and errors are in [service.md](../service.md), the client in [its README](../../clients/python/README.md).",
    ]
    tags: dict[str, list[str]] = {}
    for path, operations in sorted(api["paths"].items()):
        for method, operation in operations.items():
            tags.setdefault(operation.get("tags", ["other"])[0], []).extend(
                _operation(f"{method.upper()} {path}", operation, api["components"]["schemas"])
            )
    for tag, sections in sorted(tags.items()):
        parts += [f"## {tag}", *sections]
    return "\n\n".join(parts) + "\n"


def _operation(title: str, operation: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    scope = operation.get("x-cotenant-scope", "")
    parts = [f"### `{title}`", operation.get("summary", "") + (f" (scope `{scope}`)" if scope else "") + "."]
    rows = [
        f"| `{p['name']}` | {p['in']} | {_type(p.get('schema', {}))} | {_cell(p.get('description', ''))} |"
        for p in operation.get("parameters", [])
    ]
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content.get("schema", {})
        fields = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema).get("properties", {})
        rows += [
            f"| `{name}` | body | {_type(field)} | {_cell(field.get('description', ''))} |"
            for name, field in fields.items()
        ]
        for example in list(content.get("examples", {}).values())[:1]:
            parts.append(f"`{media}`, for example:\n\n```json\n{json.dumps(example['value'], indent=2)}\n```")
    if rows:
        parts.append("\n".join(["| | in | type | |", "|---|---|---|---|", *rows]))
    answers = [
        f"{code} `{_type(content['schema'])}`"
        for code, response in operation["responses"].items()
        if code < "3"
        for content in response.get("content", {}).values()
        if "schema" in content
    ]
    if answers:
        parts.append("Answers " + ", ".join(answers) + ".")
    return parts


def _type(schema: dict[str, Any]) -> str:
    """A schema in a word: `SetBody`, `array of string`, `number or null`."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(_type(branch) for branch in schema[word]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    return f"array of {_type(schema['items'])}" if kind == "array" and schema.get("items") else str(kind)


def python_reference() -> str:
    """Directives that mkdocstrings fills in from the docstrings."""
    head = (
        "# Python\n\nWhat other code may build on, from the docstrings. The folders are import packages; "
        "run from a checkout with its environment."
    )
    return "\n\n".join([head, *(f"## `{name}`\n\n{_directives(name)}" for name in MODULES)]) + "\n"


def _directives(module: str) -> str:
    """One directive, or one for each name of a package that imports them on first use, which mkdocstrings cannot follow."""
    if module != "profiling.capture":
        return f"::: {module}"
    from profiling import capture

    found = [f"{getattr(capture, name).__module__}.{name}" for name in capture.__all__]
    options = "    options:\n      show_root_heading: true\n      heading_level: 3"
    return "\n\n".join(f"::: {name}\n{options}" for name in found)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    stage(Path(sys.argv[1]))
