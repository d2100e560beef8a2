"""Bearer tokens with scopes. The store keeps their SHA-256; a token is shown once, when it is created."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache
from sqlalchemy import delete, select
from sqlalchemy.orm import Session
from starlette.requests import Request

from profiling.errors import ConflictError, CotenantError, InputError, UnavailableError, UnknownNameError
from serving.limits import RateLimit
from serving.listener import WATCHED
from serving.store import Store, StoreError
from serving.store.tables import SessionRow, TokenRow

if TYPE_CHECKING:
    from serving.service import Service

SCOPES = ("read", "place", "admin")
BOOTSTRAP_VARIABLE = "COTENANT_BOOTSTRAP_TOKEN"
COOKIE = "cotenant_session"  # set by the dashboard's sign-in; grants read access only
SESSION_S = 12 * 3600.0
_PREFIX = "ct_"
_REMEMBER_S = 5.0
_REMEMBERED = 10_000


class UnauthorizedError(CotenantError):
    """No token, or an unknown one."""

    status = 401
    slug = "unauthorized"
    title = "A token is needed"


class ForbiddenError(CotenantError):
    """The caller lacks the required scope."""

    status = 403
    slug = "forbidden"
    title = "Not allowed"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller."""

    name: str
    scopes: frozenset[str]


# Anybody, where no tokens are required; and who has shown none that is valid.
LOCAL, UNKNOWN = Caller("local", frozenset(SCOPES)), Caller("unknown", frozenset())


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def create_token(store: Store, name: str, scopes: list[str], days: float | None = None) -> str:
    """Create a token, valid for `days` (None: forever). It replaces one of that name that is valid no more.

    Raises:
        InputError: unknown scope, no name, or `days` not above 0. ConflictError: the name is in use.
    """
    if not name.strip():
        raise InputError("a token needs a name", expected="the name of its user", got=repr(name))
    if not scopes:
        raise InputError("a token needs a scope", expected="one of " + ", ".join(SCOPES), got="none")
    for scope in scopes:
        if scope not in SCOPES:
            raise InputError("unknown scope", expected="one of " + ", ".join(SCOPES), got=scope)
    if days is not None and not 0 < days < 36_525:
        raise InputError("days is out of range", expected="a number above 0 and below 36525", got=days)
    token = _PREFIX + secrets.token_urlsafe(32)
    with store.write() as session:
        now, earlier = store.now(session), session.get(TokenRow, name)
        if earlier is not None:
            expired = earlier.expires_at is not None and earlier.expires_at < now
            if earlier.revoked_at is None and not expired:
                raise ConflictError(
                    "a token with that name exists", got=name, hint="revoke it or choose another name"
                )
            session.execute(delete(SessionRow).where(SessionRow.token == name))  # they would be valid again
            session.delete(earlier)
            session.flush()
        expires_at = None if days is None else now + days * 86_400
        session.add(
            TokenRow(name=name, digest=digest(token), scopes=scopes, created_at=now, expires_at=expires_at)
        )
    return token


def revoke_token(store: Store, name: str) -> None:
    """Revoke a token and its sessions (within seconds in every process). Raises `UnknownNameError`."""
    with store.write() as session:
        row = session.get(TokenRow, name)
        if row is None or row.revoked_at is not None:
            raise UnknownNameError("no such token", expected="the name of a valid token", got=name)
        row.revoked_at = store.now(session)
        session.execute(delete(SessionRow).where(SessionRow.token == name))


def list_tokens(store: Store) -> list[dict[str, object]]:
    """Names, scopes and times; never the tokens."""
    with store.read() as session:
        return [
            {"name": t.name, "scopes": t.scopes, "created_at": t.created_at, "expires_at": t.expires_at,
             "revoked_at": t.revoked_at}
            for t in session.scalars(select(TokenRow).order_by(TokenRow.created_at))
        ]  # fmt: skip


def _of_bootstrap(key: str) -> str:
    """Token name for sessions opened with the bootstrap token with this digest; they end with that token."""
    return f"bootstrap:{key}"


class Authenticator:
    """Looks up tokens, and caches valid ones for seconds.

    While the store does not respond, they stay valid for `grace_s`.
    """

    def __init__(self, store: Store, grace_s: float) -> None:
        self.store, self.grace_s = store, grace_s
        self._remembered: LRUCache[str, tuple[float, Caller]] = LRUCache(_REMEMBERED)
        self._lock = threading.Lock()  # tokens are looked up in threads
        # A Secret made from a file ends with a line break, which no header can have.
        bootstrap = os.environ.get(BOOTSTRAP_VARIABLE, "").strip()
        self._bootstrap = digest(bootstrap) if bootstrap else None
        # Unknown tokens cost a store query, so each address may try only a few.
        self.failures = RateLimit(1.0, 30)

    def remembered(self, key: str, longest_s: float | None = None) -> Caller | None:
        """The caller, if the credential was valid a moment ago; does not query the store."""
        with self._lock:
            entry = self._remembered.get(key)
        longest_s = _REMEMBER_S if longest_s is None else longest_s
        return entry[1] if entry is not None and time.monotonic() - entry[0] < longest_s else None

    def look_up(self, key: str, is_session: bool = False) -> Caller:
        """The caller that a token or session belongs to, by digest.

        Raises:
            UnauthorizedError: there is none, or it has expired.
            UnavailableError: the store does not respond.
        """
        if not is_session and self._bootstrap is not None and hmac.compare_digest(key, self._bootstrap):
            caller = Caller("bootstrap", frozenset(SCOPES))
        else:
            try:
                with self.store.read() as session:
                    caller = self._stored(session, key, is_session)
            except UnauthorizedError:
                self._forget(key)
                raise
        with self._lock:
            self._remembered[key] = (time.monotonic(), caller)
        return caller

    def _stored(self, session: Session, key: str, is_session: bool) -> Caller:
        now = self.store.now(session)
        if is_session:
            opened = session.get(SessionRow, key)
            if opened is None or opened.expires_at < now:
                raise UnauthorizedError("the session has ended", hint="sign in again")
            if self._bootstrap is not None and opened.token == _of_bootstrap(self._bootstrap):
                return Caller("bootstrap", frozenset(SCOPES))
            row = session.get(TokenRow, opened.token)
        else:
            row = session.scalars(select(TokenRow).where(TokenRow.digest == key)).first()
        if row is None or row.revoked_at is not None or (row.expires_at is not None and row.expires_at < now):
            raise UnauthorizedError("the token is not valid", hint="ask an admin for one")
        return Caller(row.name, frozenset(row.scopes))

    def anybody(self) -> bool:
        """Whether there is a valid token. Raises `UnavailableError` if the store does not respond."""
        if self._bootstrap is not None:
            return True
        with self.store.read() as session:
            valid = TokenRow.revoked_at.is_(None) & (
                TokenRow.expires_at.is_(None) | (TokenRow.expires_at >= self.store.now(session))
            )
            return session.scalars(select(TokenRow.name).where(valid).limit(1)).first() is not None

    def open_session(self, token: str) -> str:
        """Sign in with this token and return a session identifier. Raises `UnauthorizedError`."""
        caller = self.look_up(digest(token))
        identifier = secrets.token_urlsafe(32)
        with self.store.write() as session:
            now = self.store.now(session)
            session.execute(delete(SessionRow).where(SessionRow.expires_at < now))
            is_bootstrap = caller.name == "bootstrap" and digest(token) == self._bootstrap
            if is_bootstrap:
                own = _of_bootstrap(digest(token))
            else:  # looked up again, because its name may be that of another token by now
                own = self._stored(session, digest(token), is_session=False).name
            session.add(
                SessionRow(digest=digest(identifier), token=own, created_at=now, expires_at=now + SESSION_S)
            )
        return identifier

    def close_session(self, identifier: str) -> None:
        """Sign out."""
        self._forget(digest(identifier))
        with self.store.write() as session:
            session.execute(delete(SessionRow).where(SessionRow.digest == digest(identifier)))

    def _forget(self, key: str) -> None:
        with self._lock:
            self._remembered.pop(key, None)


def session_of(request: Request) -> str | None:
    """The session named by the request's cookie, whatever other cookies there are."""
    return request.cookies.get(COOKIE)


async def authenticate(service: Service, request: Request, scope: str | None) -> None:
    """Authenticate and authorise the request; sets `request.state.caller`.

    Args:
        scope: the scope that the route requires; None if it is open.

    Raises:
        UnauthorizedError: no valid token. ForbiddenError: it lacks the scope. RateError: too many requests or failures.
    """
    state: dict[str, Any] = request.scope["state"]
    client = request.client.host if request.client else ""
    caller = LOCAL
    if service.tokens_required and scope is not None:
        caller = await _identify(service, request, client)
        state["caller"] = caller
        allow(caller, scope)
    else:
        state["caller"] = caller
    if request.url.path not in WATCHED:
        service.rate.take(caller.name if caller is not LOCAL else client)


async def _identify(service: Service, request: Request, client: str) -> Caller:
    authenticator = service.authenticator
    headers = request.headers.getlist("authorization")
    if len(headers) > 1:
        raise UnauthorizedError("two Authorization headers", expected="one")
    session = credential = None
    if headers:
        kind, _, token = headers[0].partition(" ")
        if kind.lower() == "bearer":
            credential = token.strip() or None
    elif request.method in ("GET", "HEAD"):
        # The dashboard's cookie grants read access only, so that no other site can act through a browser.
        session = credential = session_of(request)
    if credential is None:
        raise UnauthorizedError(
            "a bearer token is required",
            expected="Authorization: Bearer TOKEN",
            hint="`cotenant serve token add` creates one",
        )
    key = digest(credential)
    caller = authenticator.remembered(key)
    if caller is None:
        authenticator.failures.check(client)
        try:
            async with asyncio.timeout(service.config.token_check_s):
                caller = await service.check_token(authenticator.look_up, key, session is not None)
        except (TimeoutError, UnavailableError):
            caller = authenticator.remembered(key, authenticator.grace_s)
            if caller is None:
                raise StoreError("tokens cannot be verified at the moment", hint="try again") from None
        except UnauthorizedError:
            authenticator.failures.spend(client)
            raise
    return caller


def allow(caller: Caller, scope: str) -> None:
    """Raise `ForbiddenError` if `caller` lacks `scope`.

    `admin` includes `place`, and `place` includes `read`.
    """
    enough = SCOPES[SCOPES.index(scope) :]
    if not caller.scopes.intersection(enough):
        raise ForbiddenError(
            "the token lacks the required scope", expected=scope, got=", ".join(sorted(caller.scopes))
        )
