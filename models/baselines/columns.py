"""Table helpers shared by baselines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def group_names(rows: pd.DataFrame, columns: Sequence[str]) -> NDArray[np.object_]:
    """[n] one name per row from the values of some columns; all the same without columns."""
    if not columns:
        return np.full(len(rows), "", dtype=object)
    texts = [rows[column].astype(str).to_numpy(dtype=object) for column in columns]
    names: NDArray[np.object_] = texts[0]
    for text in texts[1:]:
        names = names + " | " + text
    return names
