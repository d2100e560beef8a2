"""Options, help and errors of `python -m benchmarks.NAME`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
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


def run_benchmark(file: str, main: Callable[[], object]) -> None:
    """Run `main` of the benchmark in `file`; errors that a user can fix are one line on stderr."""
    with errors_as_lines(f"benchmarks.{Path(file).stem}"):
        main()
