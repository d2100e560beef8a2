"""Protocols on published measurements of single jobs, operators, memory and mixes.

Each module has its rows, folds and baselines.
"""

from __future__ import annotations

from predictor.evaluation.protocols.protocol import Protocol
from predictor.evaluation.protocols.published import (
    cost_model,  # noqa: F401 (registers its contenders)
    ecnas,
    graph_memory,  # noqa: F401
    lamikr,
    memory,
    miso,
    mix_observed,  # noqa: F401
    mix_profiles,  # noqa: F401
    neighbour_cost,  # noqa: F401
    neusight,
    operator_cost,  # noqa: F401 (registers its contender)
    parvagpu,
    process_sharing,  # noqa: F401
    rapp,
    share_cost,  # noqa: F401
    slice_demand,  # noqa: F401
    slices,
    timm,
)

PROTOCOLS: tuple[Protocol, ...] = tuple(
    protocol
    for module in (timm, ecnas, lamikr, neusight, memory, miso, slices, parvagpu, rapp)
    for protocol in module.PROTOCOLS
)
