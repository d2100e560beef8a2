"""An Optuna study in an SQLite file: several processes may work on it at once, and a kill costs it no trial."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from profiling.errors import InputError, UnavailableError, one_line

if TYPE_CHECKING:
    from optuna import Study


def check_installed() -> None:
    """Raise `UnavailableError` if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
        import sqlalchemy  # noqa: F401
    except ImportError:
        raise UnavailableError("Optuna is not installed", hint="pip install 'cotenant[sweep]'") from None


@contextmanager
def joined_study(file: Path, name: str, first: dict[str, Any]) -> Iterator[Study]:
    """Work on a study within the block.

    If no other process works on the study, trials marked as running were interrupted, and are repeated. A lock
    beside the file shows whether one does; it is released when the process ends, even if it is killed.

    Args:
        file: SQLite file, made if it does not exist.
        name: name of the study in it.
        first: parameters of a new study's first trial.

    Raises:
        InputError: the file is not a database of studies.
        UnavailableError: its storage fails within the block, as on a full disk.
    """
    from optuna.trial import TrialState

    file.parent.mkdir(parents=True, exist_ok=True)
    with _failing_storage(file), file.with_name(f"{file.name}.{name}.lock").open("w") as lock:
        is_alone = _is_first(lock)
        study = _opened(file, name)
        if not study.trials:
            study.enqueue_trial(first)
        for cut_off in study.get_trials(states=(TrialState.RUNNING,)) if is_alone else ():
            study.tell(cut_off.number, state=TrialState.FAIL)
            study.enqueue_trial(cut_off.params)
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield study


def count_finished(study: Study) -> int:
    """Number of trials that were not interrupted."""
    from optuna.trial import TrialState

    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))


def errors_of(study: Study) -> list[float]:
    """Errors of the trials that were neither pruned nor diverged."""
    from optuna.trial import TrialState

    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [trial.value for trial in done if trial.value is not None]


def _opened(file: Path, name: str) -> Study:
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(
            storage=f"sqlite:///{file}",
            study_name=name,
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
        )
    except (SQLAlchemyError, RuntimeError, optuna.exceptions.OptunaError) as error:
        raise InputError(
            f"{file} cannot be used",
            expected="the SQLite file of a study, or a name for a new one",
            got=one_line(getattr(error, "orig", None) or error),
        ) from None


@contextmanager
def _failing_storage(file: Path) -> Iterator[None]:
    """Turn what Optuna raises when its storage fails within the block into `UnavailableError`."""
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except StorageInternalError as error:
        cause = error.__cause__ or error
        raise UnavailableError(
            "the study failed during the sweep",
            got=f"{file}: {one_line(getattr(cause, 'orig', None) or cause)}",
            hint="if its disk is full, free some space and repeat the command to resume",
        ) from error


def _is_first(lock: IO[str]) -> bool:
    """Lock the file; returns whether no other process holds a lock on it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(lock, fcntl.LOCK_SH)  # once the other process has opened the study
        return False
    return True
