"""Reads a log of any known format, detected from its content."""

from __future__ import annotations

from pathlib import Path

from profiling.errors import InputError
from profiling.files import parse_json
from scheduling.traces.columns import Columns, read_columns
from scheduling.traces.kubernetes import is_pod_list, read_pods
from scheduling.traces.logged import LoggedJob, read_text
from scheduling.traces.philly import is_philly, read_philly
from scheduling.traces.slurm import is_sacct, read_sacct


def read_rows(path: Path, columns: Columns | None = None) -> list[LoggedJob]:
    """Rows of a CSV, of `sacct`, of `kubectl get pods -o json`, or of Philly's JSON, as in the log.

    Args:
        columns: column names of a CSV, if not recognised.

    Raises:
        InputError: unknown format, or a malformed part.
    """
    if columns is not None:
        return read_columns(path, columns)
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a trace", expected="a text file", got=str(error)) from None
    if path.suffix == ".json" or header.lstrip().startswith(("[", "{")):  # Philly's has no suffix
        try:
            body = parse_json(read_text(path))
        except ValueError as error:
            raise InputError(f"{path} is not JSON", got=str(error)) from None
        try:
            if is_pod_list(body):
                return read_pods(body)
            if is_philly(body):
                return read_philly(body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} has an entry that does not match its format",
                expected="pods as printed by kubectl, or jobs with their attempts as in Philly's log",
                got=f"{type(error).__name__}: {error}",
            ) from None
        raise InputError(
            f"unrecognised JSON in {path}",
            expected="`kubectl get pods -o json` (with or without events), or Philly's cluster_job_log",
        )
    return read_sacct(path) if is_sacct(header) else read_columns(path)
