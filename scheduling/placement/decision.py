"""The answer to "where does this job go?", and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from profiling.workload import Workload
from scheduling.core.snapshot import Tenant


@dataclass(frozen=True, slots=True)
class RankedGpu:
    """One GPU that can take the job now.

    Attributes:
        score: value of the objective; smaller is better.
        finish_s: predicted seconds until the job finishes there.
        delays_s: predicted delay of each tenant in seconds.
        reasons: the same in words.
        gang: (node, GPU) of every GPU of a gang, the first of which is `node` and `gpu`; empty for a single
            GPU.
    """

    node: str
    gpu: str
    score: float
    finish_s: float
    delays_s: dict[str, float]
    reasons: tuple[str, ...]
    gang: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """The answer: `place` on the first of `ranked`, or `wait`, and why.

    Attributes:
        wait_s: on `wait`, predicted seconds until the departure worth waiting for.
        iterations: the job's length in steps, given or assumed.
        never_measured: what was never measured of the job beside the tenants of the best GPU, in words.
    """

    decision: str
    ranked: tuple[RankedGpu, ...]
    reasons: tuple[str, ...] = ()
    wait_s: float | None = None
    iterations: float | None = None
    never_measured: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `cotenant place --json` and `POST /v1/place`."""
        body: dict[str, Any] = {
            "decision": self.decision,
            "ranked": [
                {
                    "node": r.node,
                    "gpu": r.gpu,
                    "score": r.score,
                    "finish_s": r.finish_s,
                    "delays_s": r.delays_s,
                    "reasons": list(r.reasons),
                }
                | ({"gang": [{"node": n, "gpu": g} for n, g in r.gang]} if r.gang else {})
                for r in self.ranked
            ],
            "reasons": list(self.reasons),
            "never_measured": list(self.never_measured),
        }
        if self.wait_s is not None:
            body["wait_s"] = self.wait_s
        if self.iterations is not None:
            body["iterations"] = self.iterations
        return body


@lru_cache(maxsize=4096)
def _spec(job: Workload) -> str:
    return str(job)


def tenant_names(tenants: Sequence[Tenant]) -> list[str]:
    """Names of tenants in an answer: job id, else SPEC; a repeated one gets `#2`, `#3`, ..."""
    names: list[str] = []
    for tenant in tenants:
        base = tenant.job_id or _spec(tenant.job)
        name, number = base, 2
        while name in names:
            name, number = f"{base}#{number}", number + 1
        names.append(name)
    return names
