"""The `cotenant` command.

Each group or command has its own file and is imported only when called, so `--help` is instant although torch
takes seconds to import.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from profiling.command_line import errors_as_lines
from profiling.importing import import_packages
from profiling.notes import warnings_as_notes
from serving.cli.lazy import LazyGroup
from serving.cli.lists import fold_lists

app = typer.Typer(
    cls=LazyGroup,
    name="cotenant",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Predict how deep-learning jobs share a GPU, and place jobs accordingly.\n\n"
    "Start with `cotenant demo`. Every command has its own `--help` with an example.",
)


DEBUG = "--debug"


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"cotenant {version('cotenant')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show tracebacks of errors, including those of your own code.")
    ] = False,
) -> None:
    """Global options; also makes typer build a group, though no command is registered here."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a `CotenantError` or an unusable file becomes one line on stderr and an exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, TextIOWrapper):  # names may hold what the locale's encoding cannot write
        sys.stdout.reconfigure(errors="backslashreplace")
    # Set explicitly, because train.py calls this too and `train.py train` is not a command.
    with errors_as_lines("cotenant", DEBUG in given), warnings_as_notes():
        import_packages()
        app(args=fold_lists([word for word in given if word != DEBUG]), prog_name="cotenant")


if __name__ == "__main__":
    main()
