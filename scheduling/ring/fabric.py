"""The links that a split job's ring crosses, and how many full-rate flows each carries without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiling.errors import InputError

Placement = Mapping[int, int]  # server index → GPUs of the job there, all positive
Link = tuple[str, int]  # ("server", index) or ("leaf", index)


@dataclass(frozen=True, slots=True)
class Fabric:
    """Servers under leaf switches under a spine; the default is the paper's network with server uplinks only.

    A ring that visits servers in index order enters and leaves every server, and every leaf that it spans,
    once, so it puts one flow on each of those links in each direction. With `rails` network cards per server,
    a job runs as many parallel rings as every one of its servers has GPUs for, up to `rails` (one ring per
    card).

    Args:
        servers_per_leaf: servers under one leaf switch; None: one switch for all, no uplinks above the
            servers.
        oversubscription: ratio of downlink to uplink bandwidth of a leaf, at least 1 (1: a full fat tree, and
            the only value without leaves).
        rails: network cards per server, each with the cluster's inter-server bandwidth.
    """

    servers_per_leaf: int | None = None
    oversubscription: float = 1.0
    rails: int = 1

    def __post_init__(self) -> None:
        if self.servers_per_leaf is not None and self.servers_per_leaf < 1:
            raise InputError(
                "fabric.servers_per_leaf", expected="an integer from 1", got=self.servers_per_leaf
            )
        if not 1 <= self.oversubscription < float("inf"):
            raise InputError("fabric.oversubscription", expected="a number from 1", got=self.oversubscription)
        if self.oversubscription > 1 and self.servers_per_leaf is None:
            raise InputError(
                "fabric.oversubscription has no effect on servers under one switch",
                hint="add servers_per_leaf, or leave it out",
            )
        if self.rails < 1:
            raise InputError("fabric.rails", expected="an integer from 1", got=self.rails)

    def rings(self, placement: Placement) -> int:
        """Number of parallel rings of a job; its bandwidth is that many flows."""
        return 1 if self.rails == 1 else min(self.rails, min(placement.values()))

    def links(self, placement: Placement) -> tuple[Link, ...]:
        """Links that the job's ring crosses; none on a single server."""
        if len(placement) < 2:
            return ()
        links: list[Link] = [("server", server) for server in placement]
        if self.servers_per_leaf is not None:
            leaves = {server // self.servers_per_leaf for server in placement}
            if len(leaves) > 1:
                links.extend(("leaf", leaf) for leaf in sorted(leaves))
        return tuple(links)

    def flows_at_full_rate(self, link: Link) -> float:
        """Capacity of a link, in flows of the inter-server bandwidth."""
        if link[0] == "server" or self.servers_per_leaf is None:
            return float(self.rails)
        return self.servers_per_leaf * self.rails / self.oversubscription


SERVER_UPLINKS = Fabric()
