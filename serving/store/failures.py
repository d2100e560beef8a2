"""What went wrong in a database, as errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alembic.util import CommandError
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from profiling.errors import ConflictError, InputError, UnavailableError, one_line

_NOT_OURS = ("has tables that are not this service's", "check --database, or put back a backup")
_NO_DATABASE = ("is not SQLite's, or is damaged", "check --database, or put back a backup")
# By SQLite's primary result code: what is the matter with the file, and what helps.
_BY_CODE = {
    "NOTADB": _NO_DATABASE,
    "CORRUPT": _NO_DATABASE,
    "CANTOPEN": ("cannot be opened", "check --database, and that it is a file that can be written"),
    "READONLY": ("cannot be written", "allow writing to the file and its folder"),
    "ERROR": _NOT_OURS,
    "FULL": ("cannot grow: the disk is full", "free some space; writes then resume by themselves"),
    "IOERR": ("cannot be read or written", "check the disk: it may be full or damaged"),
}
# By PostgreSQL's code.
_BY_STATE = {
    "42501": (
        "does not let its user do this",
        "make the service's user the owner of the database and its tables",
    ),
    "42P01": _NOT_OURS,  # a table is missing
    "42P07": _NOT_OURS,  # a table is in the way
    "42703": _NOT_OURS,  # a column is missing
    "42701": _NOT_OURS,  # a column is in the way
}


class StoreError(UnavailableError):
    """The database does not respond, or cannot be used."""


@contextmanager
def explained(database: str) -> Iterator[None]:
    """Turn the errors of SQLAlchemy and Alembic into ours.

    Args:
        database: its name in messages.

    Raises:
        StoreError: it does not respond, or cannot be used.
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
        code = "".join(str(getattr(cause, "sqlite_errorname", "")).split("_")[1:2])
        told = _BY_CODE.get(code) or _BY_STATE.get(str(getattr(cause, "sqlstate", "")))
        if told:
            what, hint = told
            raise StoreError(f"{database} {what}", got=got, hint=hint) from error
        raise StoreError("the store does not respond", got=got, hint="try again") from error
