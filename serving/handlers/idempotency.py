"""`Idempotency-Key`: a repeated write is carried out once and gets the first answer."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from profiling.errors import InputError
from serving.http import Once
from serving.store.tables import IdempotencyRow

KEEP_S = 24 * 3600.0


def replay(session: Session, once: Once | None) -> tuple[int, dict[str, Any]] | None:
    """The status and answer given before; None if the key is new.

    Raises:
        InputError: the key was used with a different body.
    """
    row = session.get(IdempotencyRow, once.key) if once else None
    if row is None or once is None:
        return None
    if row.fingerprint != once.fingerprint:
        raise InputError(
            "Idempotency-Key was used with a different body",
            expected="a new key for a new request",
            hint="generate a new key",
        )
    return row.status, row.answer


def remember(session: Session, once: Once | None, status: int, answer: dict[str, Any], now: float) -> None:
    """Store the answer in the transaction that does the work, `now` by the database's clock."""
    if once is not None:
        session.add(
            IdempotencyRow(
                key=once.key,
                fingerprint=once.fingerprint,
                status=status,
                answer=answer,
                created_at=now,
            )
        )


def forget_old(session: Session, now: float) -> None:
    """Drop expired keys."""
    session.execute(delete(IdempotencyRow).where(IdempotencyRow.created_at < now - KEEP_S))
