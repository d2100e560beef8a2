"""Whose measurements can be imported, where they are, and what their licences allow."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Source:
    """One publisher of measurements.

    Attributes:
        name: as in `cotenant data import NAME` and in the `source` column.
        upstream: where to clone it from; empty where there is no public place.
        licence: as in the `licence` column: an SPDX identifier, `LicenseRef-...`, or `NOASSERTION`.
        may_ship: whether a model that others receive may be trained on it.
        use: what one may do with it, in words.
        files: the files that the importer reads, by their upstream names.
        holds: what was measured.
        campaigns: values of the `campaign` column.
    """

    name: str
    upstream: str
    licence: str
    may_ship: bool
    use: str
    files: tuple[str, ...]
    holds: str
    campaigns: tuple[str, ...]


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "gavel",
            "https://github.com/stanford-futuredata/gavel",
            "MIT",
            True,
            "anything, with the copyright notice",
            (
                "scheduler/simulation_throughputs.json",
                "scheduler/notebooks/figures/motivation/oracle_throughputs.json",
            ),
            "26 jobs of 7 models alone and in pairs on K80, P100, V100; alone on 2, 4 and 8 GPUs",
            ("gavel-2020", "gavel-2019"),
        ),
        Source(
            "lucid",
            "https://github.com/S-Lab-System-Group/Lucid",
            "LicenseRef-S-Lab-1.0",
            False,
            "non-commercial use only: evaluate, and train models that you keep",
            ("simulation/data/colocate_info.csv", "simulation/analyzer/single_data.csv"),
            "66 configurations of 14 models alone and pairs of 10 of them on an RTX 3090",
            ("lucid",),
        ),
        Source(
            "sia",
            "https://github.com/siasosp23/artifacts",
            "NOASSERTION",
            False,
            "no licence stated (derived from AdaptDL, Apache-2.0): evaluate, and train models that you keep",
            ("sia-simulator/traces/<application>/placements-*.csv",),
            "step and exposed synchronisation time by GPU type, placement and batch size",
            ("sia-aws", "sia-rtx", "sia-quad", "sia-dgx", "sia-dgx-ext", "sia-azure"),
        ),
        Source(
            "freezing",
            "https://github.com/gaow0007/FrozenTraceAnalysis and https://github.com/gaow0007/TraceCollectionLibrary",
            "NOASSERTION",
            False,
            "no licence stated: evaluate, and train models that you keep",
            (
                "*/frozen/<model>/placements.csv",
                "pytorch-cifar/memory/model_*.npy",
                "or tidy: throughput.csv, memory.csv",
            ),
            "step time and peak memory against frozen layers on V100s",
            ("freezing",),
        ),
        Source(
            "pipedream",
            "https://github.com/msr-fiddle/pipedream",
            "MIT",
            True,
            "anything, with the copyright notice",
            ("profiler/*/profiles/<model>/graph.txt", "<model>.graph.txt"),
            "computation graphs with forward and backward time, activation and parameter bytes per layer",
            ("pipedream",),
        ),
        Source(
            "isacpp",
            "",
            "NOASSERTION",
            False,
            "for those who have such data: their own licence holds",
            ("node_features.csv", "edges.csv", "labels.csv"),
            "co-location sets of two or three workloads as node features, edges and labels",
            ("isacpp",),
        ),
    )
}


def get_source(name: str) -> Source:
    """The source called `name`.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in SOURCES:
        raise UnknownNameError("no such source", expected="one of " + ", ".join(SOURCES), got=name)
    return SOURCES[name]
