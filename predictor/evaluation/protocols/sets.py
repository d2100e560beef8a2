"""Protocols of co-location sets.

They cover throughput, memory and utilisation together, and solo step times of the sets' models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.evaluation.protocols.protocol import OWN, Protocol, Tables

if TYPE_CHECKING:
    import pandas as pd


def resident(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Rows of sets whose members were all resident at once.

    This is judged by the set's memory and the members' solo memory.
    """
    from predictor.examples.examples import examples_of

    examples = examples_of(frame, tables["solo"])
    kept = {name for name, is_whole in zip(examples.set_ids, examples.resident, strict=True) if is_whole}
    return frame[frame["set_id"].isin(kept)]


PROTOCOLS: tuple[Protocol, ...] = (
    Protocol(
        "lucid-random",
        "sets at random: optimistic, for comparison with the literature",
        ("lucid",),
        "random",
    ),
    Protocol("lucid-by-pair", "pairs of models never seen together", ("lucid",), "by-pair"),
    Protocol("lucid-by-model", "a model never seen, solo profiles known", ("lucid",), "by-model"),
    Protocol(
        "lucid-clean-by-model",
        "a model never seen, solo profiles known; sets whose members were all resident",
        ("lucid",),
        "by-model",
        choose=resident,
    ),
    Protocol(
        "lucid-by-model-graph-only",
        "a model never seen, nothing known of it but its graph",
        ("lucid",),
        "by-model",
        with_solo=False,
    ),
    Protocol(
        "lucid-memory-by-model",
        "device memory of a set with a model never seen",
        ("lucid",),
        "by-model",
        target="set_memory_bytes",
    ),
    Protocol(
        "lucid-utilization-by-model",
        "device utilisation of a set with a model never seen",
        ("lucid",),
        "by-model",
        target="set_utilization_ratio",
    ),
    Protocol("lucid-zero-shot", "no row of this campaign learned from", ("lucid",), "zero-shot"),
    Protocol("gavel2020-random", "sets at random: optimistic, for comparison", ("gavel-2020",), "random"),
    Protocol("gavel2020-by-pair", "pairs of models never seen together", ("gavel-2020",), "by-pair"),
    Protocol("gavel2020-by-model", "a model never seen, its step time known", ("gavel-2020",), "by-model"),
    Protocol("gavel2019-random", "sets at random: optimistic, for comparison", ("gavel-2019",), "random"),
    Protocol("gavel2019-by-model", "a model never seen, its step time known", ("gavel-2019",), "by-model"),
    Protocol("gavel-by-device", "a GPU type never seen (2020)", ("gavel-2020",), "by-device"),
    Protocol("all-by-model", "a model never seen, over both publishers", ("gavel", "lucid"), "by-model"),
    Protocol(
        "solo-by-model",
        "step time alone of a model never seen, nothing known but its graph; our own CPU included",
        ("gavel", "lucid", OWN),
        "by-model",
        target="solo_step_time_s",
        with_solo=False,
        known=("workloads",),
    ),
)
