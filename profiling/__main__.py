"""`python -m profiling campaign run PLAN -o DIR --limit 9m`: measure straight from a checkout.

It needs only torch and a few packages. In a full installation, the same commands are under `cotenant
campaign`.
"""

from __future__ import annotations

import typer

from profiling.campaign.console import export, run, status
from profiling.command_line import errors_as_lines
from profiling.notes import warnings_as_notes

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Measure jobs on this machine.")
campaign = typer.Typer(no_args_is_help=True, help="Run a plan; a killed run resumes where it stopped.")
campaign.command("run")(run)
campaign.command("status")(status)
campaign.command("export")(export)
app.add_typer(campaign, name="campaign")


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a `CotenantError` or an unusable file becomes one line on stderr and an exit code."""
    with errors_as_lines("profiling"), warnings_as_notes():
        app(args=arguments)


if __name__ == "__main__":
    main()
