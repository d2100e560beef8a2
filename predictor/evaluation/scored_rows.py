"""The scored rows behind the figures of `cotenant evaluate`, for whoever computes them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats

if TYPE_CHECKING:
    import pandas as pd

    from predictor.examples.examples import Examples, Integers

# Called with the scored rows: what each is, `measured`, `predicted` and, with intervals, `lower` and `upper`.
RowsCallback = Callable[["pd.DataFrame"], None]


def no_rows(_rows: pd.DataFrame) -> None:
    """A `RowsCallback` that drops them."""


def member_rows(examples: Examples, rows: Integers, values: Mapping[str, Floats]) -> pd.DataFrame:
    """The members `rows` of measured sets, with their ratio as `measured` and columns `values`, [len(rows)] each.

    `job` is the SPEC with all that the predictor was told about the job alone.
    """
    import pandas as pd

    sets, position = examples.places
    named = {
        "device": examples.devices,
        "sharing": examples.mode,
        "campaign": examples.campaign,
        "architecture": examples.architectures,
        "job": examples.workloads,
    }
    return pd.DataFrame(
        {
            "set_id": np.array(examples.set_ids, dtype=object)[sets[rows]],
            "member": position[rows],
            **{name: [str(column[row]) for row in rows] for name, column in named.items()},
            "measured": examples.ratio[rows],
            **values,
        }
    )
