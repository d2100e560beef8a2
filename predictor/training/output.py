"""The folder that a run writes its result to: one run at a time, and none replaces a result unasked."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from predictor.fitted.checkpoint import MARKER
from profiling.ending import termination_as_exit
from profiling.errors import ConflictError, InputError, UnavailableError
from profiling.files import check_folder, check_new, only_writer, read_json, write_json

# In `OUT.progress`: the checkpoint that a killed run may still replace when it is resumed.
_REPLACES = "replaces.json"


class UnregisteredError(UnavailableError):
    """The predictor is written, but the MLflow store did not take it."""

    exit_code = 1


def progress_folder(out: Path) -> Path:
    """`OUT.progress`, beside `out`.

    Raises:
        InputError: nothing can be written to `out`.
    """
    check_folder(out)
    target = out.resolve()
    if not target.name:
        raise InputError(
            f"{out} cannot be the folder of a result", expected="a folder with a name", got=f"{target}"
        )
    return target.with_name(f"{target.name}.progress")


class Output:
    """A folder that this run alone writes to; see `claimed`."""

    def __init__(self, out: Path, force: bool, fingerprint: str, marker: str) -> None:
        self.folder, self._fingerprint, self._marker = out, fingerprint, marker
        self._written = False
        self._record = progress_folder(out) / _REPLACES
        check_new(out, force or self._there() in (None, self._permitted_earlier()), marker)
        self._permit()

    def save(self, write: Callable[[], object]) -> None:
        """Have `write` write the result, unless another run's would be replaced.

        Raises:
            ConflictError: a result has appeared since the run began, or another in place of that one.
            OSError: the folder cannot be written.
        """
        if self._there() not in (None, self._replaces):
            raise ConflictError(
                f"another result appeared during the run: {self.folder} has a new {self._marker}",
                expected="the folder as it was at the start",
                hint="move it away, or give --force to replace it, and repeat the command",
            )
        write()
        self._permit()  # if the run is killed before its end, it replaces its own when resumed
        self._written = True

    @contextmanager
    def registered_later(self) -> Iterator[None]:
        """Say where the predictor is if the block fails after writing it, and how it can still be registered.

        Raises:
            UnregisteredError: instead of the error of a store.
        """
        try:
            yield
        except (UnavailableError, OSError) as error:  # of a database or server; of artifacts
            if not self._written:
                raise
            again = "repeat the command, which resumes at its end"
            command = f"`cotenant models register {self.folder}` (with the same --tracking-uri, if any)"
            raise UnregisteredError(
                f"the predictor is written to {self.folder} but not registered",
                got=getattr(error, "got", None) or error,
                hint=f"once the MLflow store works, {again if self._fingerprint else command}",
            ) from error

    def _there(self) -> str | None:
        """Digest of the result in the folder; None if there is none."""
        marker = self.folder / self._marker
        return hashlib.sha256(marker.read_bytes()).hexdigest() if marker.exists() else None

    def _permit(self) -> None:
        self._replaces = self._there()
        if self._fingerprint:
            write_json(self._record, {"fingerprint": self._fingerprint, "checkpoint": self._replaces})

    def _permitted_earlier(self) -> str | None:
        """Digest of the checkpoint that the same run was to replace before it was killed."""
        try:
            body = read_json(self._record)
            checkpoint: str | None = body["checkpoint"]
            return checkpoint if body["fingerprint"] == self._fingerprint else None
        except (InputError, LookupError, TypeError):
            return None


@contextmanager
def claimed(out: Path, force: bool, fingerprint: str = "", marker: str = MARKER) -> Iterator[Output]:
    """Hold the lock of `out`, which is in `OUT.progress`, and check that a result may be written there.

    Args:
        out: folder of the result.
        force: replace a result that is there now.
        fingerprint: of a run that can be resumed; without `force`, it may then replace only what it was allowed
            to replace before it was killed.
        marker: file that differs between any two results; by default that of a checkpoint.

    Raises:
        InputError: nothing can be written to `out`, or it has a result.
        ConflictError: another run is writing to `out`.
    """
    folder = progress_folder(out)
    with termination_as_exit(), only_writer(folder, 0):
        try:
            yield Output(out, force, fingerprint, marker)
        finally:
            if {path.name for path in folder.glob("*")} <= {".lock"}:
                shutil.rmtree(folder, ignore_errors=True)
