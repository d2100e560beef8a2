"""Which MIG slices of a node lie on one card, by their ids, and whether they can."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from profiling.devices import has_mig, mig_layout, split_device
from profiling.errors import InputError

if TYPE_CHECKING:
    from scheduling.core.snapshot import Gpu

_HINT = "the part of a slice's id before / or . names the card: 0/3g, 0.1"
_CARD_OF_SLICE = re.compile(r"(?P<slash>.+)/[^/]+|(?P<point>\d+)\.\d+")


def card_of_slice(gpu_id: str) -> str | None:
    """The card named by a slice's id, before a `/` or a point between two numbers; None if it names none.

    >>> card_of_slice("0/3g"), card_of_slice("0.1"), card_of_slice("3g.20gb-0")
    ('0', '0', None)
    """
    of = _CARD_OF_SLICE.fullmatch(gpu_id)
    return (of["slash"] or of["point"]) if of else None


def check_cards(gpus: Iterable[Gpu], where: str) -> None:
    """Check that the slices of each card of a node can lie on it together; ids that name no card are not checked.

    Raises:
        InputError: they cannot, are of several types of card, or the card is in the node as a whole, too.
    """
    slices: dict[str, dict[str, list[str]]] = {}
    whole: dict[str, str] = {}
    for gpu in gpus:
        card, part = split_device(gpu.device)
        if part is None:
            whole[gpu.id] = card
        elif has_mig(card) and (of := card_of_slice(gpu.id)) is not None:
            slices.setdefault(of, {}).setdefault(card, []).append(part)
    for of, by_type in slices.items():
        found = [*([whole[of]] if of in whole else []), *(f"a slice of {card}" for card in by_type)]
        if len(found) > 1:
            raise InputError(
                f"{where}: card {of} is there more than once",
                expected="one card, whole or as slices",
                got=" and ".join(found),
                hint=_HINT,
            )
        card, parts = by_type.popitem()
        layout = mig_layout(card)
        if layout.place(parts) is None:
            raise InputError(
                f"{where}: the MIG slices of card {of} cannot lie on one {card} together",
                expected="slices of one of " + ", ".join(map(str, layout.maximal)),
                got="+".join(parts),
                hint=_HINT,
            )
