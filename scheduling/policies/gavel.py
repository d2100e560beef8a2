"""Gavel: shares of every GPU type by a linear program or a rule, implemented in rounds of 360 s.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020;
`SIA` is the variant in the artifact of Jayaram Subramanya et al., "Sia", SOSP 2023.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from scheduling.core.job import Allocation
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.gavel.config import GavelConfig
from scheduling.gavel.rounds import RoundConfig
from scheduling.gavel.scheduler import GavelScheduler


def decide(snapshot: SchedulingSnapshot, belief: SetCache, config: GavelConfig) -> list[Allocation]:
    """End a round and start the next."""
    scheduler = snapshot.derived(("gavel", config), lambda: GavelScheduler(snapshot, config))
    return scheduler.decide(snapshot, belief)


def gavel(name: str, config: GavelConfig, aligned: bool = False) -> Policy:
    """The policy with custom settings; `as_published` has the artefacts of the public simulator's rounds."""
    ours = Policy(
        name,
        partial(decide, config=config),
        config.rounds.round_s,
        preemptive=True,
        aligned=aligned,
        saves=True,  # at the end of its lease, which is the round (section 6)
    )
    upstream = partial(decide, config=config.as_published())
    return replace(ours, as_published=replace(ours, decide=upstream, rests=True))


_FIFO = RoundConfig(leftovers=False)
POLICY = gavel("gavel", GavelConfig())
PACKED = gavel("gavel-packed", GavelConfig(packed=True))
BASE = gavel("gavel-base", GavelConfig(blind=True))
MAX_SUM = gavel("gavel-max-sum", GavelConfig("max-sum"))
FINISH_TIME = gavel("gavel-finish-time", GavelConfig("finish-time"))
FINISH_TIME_BASE = gavel("gavel-finish-time-base", GavelConfig("finish-time", blind=True))
FIFO = gavel("gavel-fifo", GavelConfig("fifo", rounds=_FIFO))
FIFO_BASE = gavel("gavel-fifo-base", GavelConfig("fifo", blind=True, rounds=_FIFO))
FIFO_PACKED = gavel("gavel-fifo-packed", GavelConfig("fifo", packed=True, rounds=_FIFO))
ALLOX = gavel("allox", GavelConfig("allox"))
_SIA = RoundConfig(reset_s=0.0, one_list=True, whole=True)
SIA = replace(
    gavel(
        "gavel-sia",
        GavelConfig("max-sum", rounds=_SIA, decimals=5, too_small=0.1, even=True, first_free=True),
        aligned=True,
    ),
    as_published=None,
)
