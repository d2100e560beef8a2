"""Groups of commands."""

from __future__ import annotations

import typer


def group(about: str) -> typer.Typer:
    """A command that only has others, such as `cotenant data`; `about` is its help, in Markdown."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help=about)
