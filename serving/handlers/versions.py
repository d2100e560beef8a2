"""The version of the stored cluster, and the number of its last change."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.orm import Session

from serving.conditions import Condition
from serving.store.tables import ClusterRow, table_of

_CLUSTER = table_of(ClusterRow)
_ADVANCE = (
    update(_CLUSTER)
    .where(_CLUSTER.c.id == 1)
    .values(changes=_CLUSTER.c.changes + 1, version=_CLUSTER.c.version + bindparam("counts"))
    .returning(_CLUSTER.c.version, _CLUSTER.c.changes)
)
_READ = select(_CLUSTER.c.version, _CLUSTER.c.changes).where(_CLUSTER.c.id == 1)


@dataclass(frozen=True, slots=True)
class Change:
    """The cluster version after a change, and the number of the change."""

    version: int
    changes: int

    @property
    def tag(self) -> str:
        """The ETag of this very state."""
        return f'"{self.version}.{self.changes}"'

    def check(self, condition: Condition, exists: bool = True) -> None:
        """Raise `PreconditionError` unless this state meets a condition, which may name only the version."""
        condition.check((f'"{self.version}"', self.tag), exists)


def latest(session: Session) -> Change:
    """The last change, inside a write."""
    row = session.connection().execute(_READ).first()
    return Change(0, 0) if row is None else Change(row.version, row.changes)


def advance(
    session: Session, condition: Condition | None = None, counts: bool = True, exists: bool = True
) -> Change:
    """Allocate the number of the next change, inside a write.

    Args:
        condition: what the state before must meet; None for any.
        counts: whether to advance the version too, not only the change number.
        exists: whether the resource that changes exists.

    Raises:
        PreconditionError: the state before does not meet `condition`.
    """
    connection = session.connection()
    row = connection.execute(_ADVANCE, {"counts": int(counts)}).first()
    if row is None:
        connection.execute(insert(_CLUSTER).values(id=1, version=int(counts), changes=1, links=[]))
    change = Change(int(counts), 1) if row is None else Change(row.version, row.changes)
    if condition is not None:
        Change(change.version - int(counts), change.changes - 1).check(condition, exists)
    return change
