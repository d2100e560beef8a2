"""Measurements shipped with the project (our own only), with their card (`CARD.md`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).parent


def load() -> dict[str, pd.DataFrame]:
    """The bundled tables; tables that are not bundled are empty."""
    from datasets.schema import TABLES
    from datasets.tables import available_tables, empty_table, read_table

    present = available_tables(FOLDER)
    return {name: read_table(FOLDER, name) if name in present else empty_table(name) for name in TABLES}


@cache
def campaigns() -> frozenset[str]:
    """The campaigns of the bundled rows."""
    from datasets.tables import available_tables, read_parquet

    columns = (read_parquet(FOLDER / f"{name}.parquet")["campaign"] for name in available_tables(FOLDER))
    return frozenset(str(value) for column in columns for value in column.unique())
