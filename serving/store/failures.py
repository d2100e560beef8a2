"""What went wrong in a database, as errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alembic.util import CommandError
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from profiling.errors import ConflictError, InputError, UnavailableError, one_line

_NO_DATABASE = ("is not SQLite's, or is damaged", "check --database, or put back a backup")
# By SQLite's primary result code: what is the matter with the file, and what helps.
_BY_CODE = {
    "NOTADB": _NO_DATABASE,
    "CORRUPT": _NO_DATABASE,
    "CANTOPEN": ("cannot be opened", "check --database, and that it is a file that can be written"),
    "READONLY": ("cannot be written", "allow writing to the file and its folder"),
    "ERROR": ("has tables that are not this service's", "check --database, or put back a backup"),
    "FULL": ("cannot grow: the disk is full", "free some space; writes then resume by themselves"),
    "IOERR": ("cannot be read or written", "look at the disk: it may be full or damaged"),
}


@contextmanager
def explained(database: str) -> Iterator[None]:
    """Turn the errors of SQLAlchemy and Alembic into ours.

    Args:
        database: its name in messages.

    Raises:
        UnavailableError: it does not respond, or cannot be used.
        ConflictError: concurrent update.
        InputError: it cannot hold a value, or was made by a later version.
    """
    try:
        yield
    except CommandError as error:
        raise InputError(
            f"the tables of {database} cannot be upgraded",
            expected="a database of this version or an earlier one",
            got=one_line(error, 200),
            hint="run the version that made it, or choose another --database",
        ) from error
    except IntegrityError as error:
        raise ConflictError("concurrent update", hint="read the state and try again") from error
    except DataError as error:  # PostgreSQL rejects NUL in text, and text longer than its column
        got = " ".join(str(error.orig).split())[:200]
        raise InputError(
            "a value cannot be stored", expected="text without NUL, of the documented length", got=got
        ) from error
    except (DBAPIError, PoolTimeoutError) as error:
        cause = getattr(error, "orig", None) or error
        got = " ".join(str(cause).split())[:200]
        # `SQLITE_READONLY_DIRECTORY` and the like: the code, and what it is about.
        code = str(getattr(cause, "sqlite_errorname", "")).split("_")[1:2]
        if code and code[0] in _BY_CODE:
            what, hint = _BY_CODE[code[0]]
            raise UnavailableError(f"{database} {what}", got=got, hint=hint) from error
        raise UnavailableError("the store does not respond", got=got, hint="try again") from error
