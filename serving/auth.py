"""Bearer tokens with scopes. The store keeps their SHA-256; a token is shown once, when it is made."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from dataclasses import dataclass

from sqlalchemy import select

from profiling.errors import ConflictError, CotenantError, InputError, UnknownNameError
from serving.store import Store
from serving.store.tables import TokenRow

SCOPES = ("read", "place", "admin")
BOOTSTRAP_VARIABLE = "COTENANT_BOOTSTRAP_TOKEN"
_PREFIX = "ct_"
_REMEMBER_S = 5.0

# Paths that anybody may ask, and the scope that everything else takes. What is not listed takes `admin`.
OPEN_PATHS = ("/v1/health/", "/v2/health/", "/login", "/static/")
COOKIE = "cotenant_token"  # what the dashboard's sign-in sets; it counts for reading only
_READ_POSTS = ("/v1/predict", "/v1/layer-throughput", "/v2/models/")
_PLACE_POSTS = ("/v1/place", "/v1/observations", "/extender/")


class UnauthorizedError(CotenantError):
    """No token, or an unknown one."""

    status = 401
    slug = "unauthorized"
    title = "A token is needed"


class ForbiddenError(CotenantError):
    """A token without the scope that this call takes."""

    status = 403
    slug = "forbidden"
    title = "The token does not allow this"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str
    scopes: frozenset[str]


LOCAL = Caller("local", frozenset(SCOPES))


def required_scope(method: str, path: str) -> str | None:
    """The scope that a call takes; None where anybody may.

    `admin` includes `place`, and `place` includes `read`.
    """
    if path.startswith(OPEN_PATHS):
        return None
    if method in ("GET", "HEAD", "OPTIONS") or (method == "POST" and path.startswith(_READ_POSTS)):
        return "read"
    if method == "POST" and path.startswith(_PLACE_POSTS):
        return "place"
    return "admin"


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def create_token(store: Store, name: str, scopes: list[str]) -> str:
    """Make a token. Raises `InputError` for an unknown scope, `ConflictError` for a name in use."""
    for scope in scopes:
        if scope not in SCOPES:
            raise InputError("unknown scope", expected="one of " + ", ".join(SCOPES), got=scope)
    if not scopes or not name:
        raise InputError(
            "a token needs a name and a scope", expected="one of " + ", ".join(SCOPES), got="none"
        )
    token = _PREFIX + secrets.token_urlsafe(32)
    with store.write() as session:
        if session.get(TokenRow, name) is not None:
            raise ConflictError(
                "a token of that name exists", got=name, hint="revoke it or choose another name"
            )
        session.add(TokenRow(name=name, digest=digest(token), scopes=scopes, created_at=time.time()))
    return token


def revoke_token(store: Store, name: str) -> None:
    """Make a token invalid (within seconds everywhere). Raises `UnknownNameError`."""
    with store.write() as session:
        row = session.get(TokenRow, name)
        if row is None or row.revoked_at is not None:
            raise UnknownNameError("no such token", expected="the name of a valid token", got=name)
        row.revoked_at = time.time()


def list_tokens(store: Store) -> list[dict[str, object]]:
    """Names, scopes and times; never the tokens."""
    with store.read() as session:
        return [
            {"name": t.name, "scopes": t.scopes, "created_at": t.created_at, "revoked_at": t.revoked_at}
            for t in session.scalars(select(TokenRow).order_by(TokenRow.created_at))
        ]


class Authenticator:
    """Looks tokens up, and remembers valid ones for some seconds."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._remembered: dict[str, tuple[float, Caller]] = {}
        bootstrap = os.environ.get(BOOTSTRAP_VARIABLE)
        self._bootstrap = digest(bootstrap) if bootstrap else None

    def remembered(self, header: str | None) -> Caller | None:
        """The caller where the token was valid a moment ago: no look at the store."""
        entry = self._remembered.get(digest(_token(header)))
        return entry[1] if entry is not None and entry[0] > time.monotonic() else None

    def look_up(self, header: str | None) -> Caller:
        """The caller of an `Authorization` header. Raises `UnauthorizedError`."""
        key = digest(_token(header))
        if self._bootstrap is not None and hmac.compare_digest(key, self._bootstrap):
            caller = Caller("bootstrap", frozenset(SCOPES))
        else:
            with self.store.read() as session:
                row = session.scalars(select(TokenRow).where(TokenRow.digest == key)).first()
            if row is None or row.revoked_at is not None:
                raise UnauthorizedError("the token is not valid", hint="ask an admin for one")
            caller = Caller(row.name, frozenset(row.scopes))
        if len(self._remembered) > 10_000:
            self._remembered.clear()
        self._remembered[key] = (time.monotonic() + _REMEMBER_S, caller)
        return caller


def allow(caller: Caller, scope: str) -> None:
    """Raises `ForbiddenError` where `caller` lacks `scope`."""
    enough = SCOPES[SCOPES.index(scope) :]
    if not caller.scopes.intersection(enough):
        raise ForbiddenError("the token lacks a scope", expected=scope, got=", ".join(sorted(caller.scopes)))


def _token(header: str | None) -> str:
    kind, _, token = (header or "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise UnauthorizedError("a bearer token is needed", expected="Authorization: Bearer TOKEN")
    return token.strip()
