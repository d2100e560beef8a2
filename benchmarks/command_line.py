"""Options, help and errors of `python -m benchmarks.NAME`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from profiling.command_line import errors_as_lines


def benchmark_parser(file: str, description: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows how to start the benchmark.

    Args:
        file: `__file__` of the benchmark.
        description: its `__doc__`, shown with its line breaks.
    """
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{Path(file).stem}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Type of an option that takes some of the known names, separated by commas.

    Its default must be a list, which `record_name` compares.
    """

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}; got {', '.join(unknown)}")
        return chosen

    return names


def several(text: str) -> int:
    """Type of an option: how many runs, of which at least two give a standard deviation.

    Raises:
        ArgumentTypeError: fewer, or not a number.
    """
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"expected a number from 2, for a standard deviation; got {text}")
    return int(text)


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add `--name`, the option of `record_name`."""
    parser.add_argument("--name", help="name of the results file (default: the benchmark's own)")


def record_name(
    parser: argparse.ArgumentParser, options: argparse.Namespace, own: str, *narrowing: str
) -> str:
    """Name of the record to write: `--name`, otherwise `own`.

    Args:
        parser: has `--name` (`add_name`).
        own: name of the record of a whole run.
        narrowing: attributes of `options` that, unless at their defaults, leave out or change figures.

    Raises:
        SystemExit: code 2, if such a run gives no `--name`, since it would replace the record of a whole run.
    """
    if options.name:
        return str(options.name)
    for option in narrowing:
        if getattr(options, option) != parser.get_default(option):
            parser.error(
                f"--{option.replace('_', '-')} would replace the whole record {own}.json by a part or a variant; "
                f"add --name NAME to write it elsewhere (--name {own} to replace it)"
            )
    return own


def run_benchmark(file: str, main: Callable[[], object]) -> None:
    """Run `main` of the benchmark in `file`; errors that a user can fix are one line on stderr."""
    with errors_as_lines(f"benchmarks.{Path(file).stem}"):
        main()
