"""How a command ends: errors that a user can fix are one line on stderr, and a closed pipe is no error."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Iterator

from profiling.errors import CotenantError

CLOSED_PIPE = 141
"""Exit code after the reader of stdout has gone, as in `... | head`: that of a process that SIGPIPE ended."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
# Reading fails with none of these.
_OF_WRITING = (*_FULL, errno.EFBIG, errno.EROFS)
# Modules of the standard library that Windows lacks.
_OF_UNIX = ("fcntl", "resource")


@contextlib.contextmanager
def errors_as_lines(program: str, debug: bool = False) -> Iterator[None]:
    """Turn errors that a user can fix into one line on stderr and an exit code.

    The code is that of a `CotenantError`, 2 for an unusable file, and `CLOSED_PIPE` for a closed pipe. Other
    errors pass.

    Args:
        program: begins the line.
        debug: also show the traceback of a `CotenantError`.
    """
    try:
        with _flushed():
            yield
    except CotenantError as error:
        if debug:
            traceback.print_exception(error)
        _end(program, error.message, error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in _OF_UNIX:
            raise
        _end(program, f"this command needs Linux or macOS: got {sys.platform}.", 2)
    except BrokenPipeError:
        _end_closed_pipe()
    except OSError as error:
        if error.filename is not None:
            path = error.filename if error.filename2 is None else error.filename2
            what = "write" if error.errno in _OF_WRITING else "read or write"
            reason = str(error.strerror)
            _end(program, f"cannot {what} {path}: {reason[:1].lower()}{reason[1:]}; choose another path.", 2)
        if error.errno in _FULL:  # a file would have a name, so it is the output
            _discard_output()
            _end(program, f"the output cannot be written: got {error.strerror}.", 2)
        raise  # not about a file, so a bug
    except SystemExit as end:
        # typer and rich make 1 of a closed pipe, which means a negative answer here.
        if isinstance(end.__context__, BrokenPipeError):
            _end_closed_pipe()
        raise


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Write what is buffered for stdout, so that the interpreter has nothing left to fail on at its end."""
    if sys.stdout is None:  # closed before the start (`>&-`)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _end(program: str, message: str, code: int) -> None:
    print(f"{program}: {message}", file=sys.stderr)
    raise SystemExit(code) from None


def _end_closed_pipe() -> None:
    _discard_output()
    raise SystemExit(CLOSED_PIPE) from None


def _discard_output() -> None:
    """Send what is still buffered for stdout to the null device."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
