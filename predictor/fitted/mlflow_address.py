"""Addresses of MLflow stores: which one is meant, whether it can be reached, and no password in messages."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from profiling.errors import InputError, UnavailableError

DEFAULT_TRACKING = "sqlite:///mlflow.db"
# Longest wait for a server's first answer.
_ANSWER_S = 15.0
_PASSWORD = re.compile(r"(?<=://)([^\s/:@]*):[^\s/]*@")


def address_of(tracking_uri: str | None) -> str:
    """The store that `use_store` sets, as `signed_in` returns it."""
    return signed_in(tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_TRACKING)


def signed_in(uri: str) -> str:
    """The address of a server without `USER:PASSWORD@`, which MLflow will read from the environment instead.

    MLflow would print them in its own messages. Other addresses are returned as they are.
    """
    scheme, separator, rest = uri.partition("://")
    login, at, host = rest.partition("/")[0].rpartition("@")
    user, _, password = login.partition(":")
    if scheme not in ("http", "https") or not at or not password:
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(user)
    os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(password)
    return scheme + separator + host + rest[len(login) + 1 + len(host) :]


def shown(text: str) -> str:
    """`text` without the passwords of addresses in it.

    >>> shown("postgresql://user:secret@host/mlflow")
    'postgresql://user:***@host/mlflow'
    """
    return _PASSWORD.sub(r"\1:***@", text)


def check_store(uri: str) -> None:
    """Check that a store can be reached.

    Raises:
        InputError: an SQLite store cannot be opened.
        UnavailableError: a server cannot be reached.
    """
    if uri.startswith(("http://", "https://")):
        _check_server(uri)
    if not uri.startswith("sqlite:///"):
        return
    path = Path(uri.removeprefix("sqlite:///"))
    if (
        path.is_dir()
        or not path.parent.is_dir()
        or not os.access(path if path.exists() else path.parent, os.W_OK)
    ):
        raise InputError(
            "the MLflow store cannot be opened",
            expected="sqlite:///FILE in an existing, writable folder",
            got=shown(uri),
        )


def _check_server(uri: str) -> None:
    import ssl
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    address = urlsplit(uri)
    try:
        host, port = address.hostname or "", address.port
        # Whether it is trusted is MLflow's to check.
        connection = (
            HTTPSConnection(host, port, timeout=_ANSWER_S, context=ssl._create_unverified_context())
            if address.scheme == "https"
            else HTTPConnection(host, port, timeout=_ANSWER_S)
        )
        # One that accepts connections and is silent would keep MLflow waiting for minutes. Any answer will do.
        connection.request("HEAD", f"{address.path.rstrip('/')}/health")
        connection.getresponse()
        connection.close()
    except (OSError, ValueError, HTTPException) as error:
        raise UnavailableError(
            "the MLflow server cannot be reached",
            expected="an MLflow server at that address",
            got=f"{shown(uri)}: {error}",
            hint="`mlflow server` starts one; without --tracking-uri and MLFLOW_TRACKING_URI the store is a file",
        ) from None


def is_absent(tracking_uri: str) -> bool:
    """Whether the store is a missing SQLite file, which MLflow would create on access."""
    path = tracking_uri.removeprefix("sqlite:///")
    return path != tracking_uri and not Path(path).exists()
