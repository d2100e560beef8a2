"""A command group that imports its commands only when they are called or their help is requested."""

from __future__ import annotations

import importlib
import shutil
from typing import Any

import typer.core
import typer.main

from profiling.errors import UnknownNameError
from profiling.names import one_of

# name: (module under serving.cli, short help for the list). A module has either `app` (a group) or `command` (a
# function). The list is here because reading it must not import the modules.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Show which models share a GPU well, and a dozen jobs with and without sharing."),
    "zoo": ("zoo", "Bundled models: list, check."),
    "capture": ("capture", "Turn a model into its computation graph."),
    "devices": ("devices", "Known GPU types: list, show."),
    "profile": ("profile", "Measure jobs alone and together on a real device."),
    "campaign": ("campaign", "Plan and run measurement campaigns that survive interruptions."),
    "data": ("data", "Import, describe and check measurements."),
    "benchmark": ("benchmark", "Run the evaluation protocols."),
    "train": ("train", "Train the predictor."),
    "sweep": ("sweep", "Search for a better configuration."),
    "evaluate": ("evaluate", "Score a predictor on measurements."),
    "predict": ("predict", "Predict how a set of jobs shares a device."),
    "matrix": ("matrix", "Predict how every pair of jobs shares a device."),
    "probe": ("probe", "Choose the most informative runs of a job, alone or beside a partner."),
    "place": ("place", "Choose a GPU for a job on a cluster."),
    "cluster": (
        "cluster",
        "Write a sample cluster.yaml, check one, or import it from nvidia-smi, Slurm or Kubernetes.",
    ),
    "simulate": ("simulate", "Run a policy over a trace of jobs."),
    "compare": ("compare", "Run several policies over one trace."),
    "plan": ("plan", "Plan pipeline stages, all-reduce rings, MIG slices and MPS shares."),
    "serve": ("serve", "Run the REST service."),
    "controller": ("controller", "Connect Slurm or Kubernetes to a running service."),
    "models": ("models", "Registered predictors: list, register, promote, export."),
    "feedback": ("feedback", "Correct predictions with observed step times."),
    "report": ("report", "Write an HTML report about a folder of measurements."),
}

# Below this width, in columns, boxes in a command's help would truncate option names.
_BOXES = 110


def _plain_if_narrow(command: Any) -> Any:
    """Turn off the boxes in a command's help in narrow terminals; groups keep them, their commands do not."""
    for member in getattr(command, "commands", {}).values():
        _plain_if_narrow(member)
    if not hasattr(command, "commands") and shutil.get_terminal_size().columns < _BOXES:
        command.rich_markup_mode = None
    return command


class LazyGroup(typer.core.TyperGroup):
    """Resolves `COMMANDS` on demand."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (required by the base class)
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"serving.cli.{COMMANDS[cmd_name][0]}")
        if hasattr(module, "app"):
            command: Any = typer.main.get_group(module.app)
        else:
            single = typer.Typer(
                rich_markup_mode="markdown", pretty_exceptions_enable=False, add_completion=False
            )
            single.command(name=cmd_name, **getattr(module, "SETTINGS", {}))(module.command)
            command = typer.main.get_command(single)
        command.name = cmd_name
        return _plain_if_narrow(command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            raise UnknownNameError(
                "no such command",
                expected=one_of(args[0], COMMANDS),
                got=args[0],
                hint="`cotenant --help` lists all",
            )
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 (required by the base class)
        from rich.console import Console
        from rich.table import Table

        console = Console()
        console.print(f"\n[bold]Usage:[/] {ctx.command_path} COMMAND [ARGS]...\n")
        console.print(" Predict how deep-learning jobs share a GPU, and place jobs accordingly.")
        console.print(
            " Start with [bold]cotenant demo[/]. Every command has its own --help with an example.\n"
        )
        table = Table(show_header=False, box=None, padding=(0, 2))
        for name in self.list_commands(ctx):
            table.add_row(f"[cyan]{name}[/]", COMMANDS[name][1])
        console.print(table)
        console.print("\n --version shows the version; --debug shows tracebacks, with any command.")
        console.print(" Exit codes: 0 success, 1 negative answer, 2 bad input, 130 interrupted.\n")
