"""Sources of measurements that can be imported: where to get them, and what their licences allow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from profiling.errors import InputError, UnknownNameError
from profiling.names import one_of


@dataclass(frozen=True, slots=True)
class Source:
    """One publisher of measurements.

    Attributes:
        name: as in `cotenant data import NAME` and in the `source` column.
        upstream: where to clone it from; empty if not public.
        licence: as in the `licence` column: an SPDX identifier, `LicenseRef-...`, or `NOASSERTION`.
        may_ship: whether a redistributed model may be trained on it.
        use: permitted uses, in words.
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


OBSERVED = "feedback"
"""Source and campaign of rows that `cotenant feedback` and `data export-observations` write, and replace."""

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
            "timm",
            "https://github.com/huggingface/pytorch-image-models",
            "Apache-2.0",
            True,
            "anything, with the licence and copyright notice",
            ("results/benchmark-train-*.csv", "results/benchmark-infer-*.csv"),
            "training steps of 600 and inference steps of 1,100 networks alone on RTX 3090, 4090, 5090 and PRO 6000",
            (
                "timm-pt112-cu113",
                "timm-pt113-cu117",
                "timm-pt210-cu121",
                "timm-pt240-cu124",
                "timm-pt291-cu128",
                "timm-pt291-cu130",
                "timm-pt291-cu130-bf16",
            ),
        ),
        Source(
            "ecnas",
            "https://github.com/PedramBakh/EC-NAS-Bench",
            "MIT",
            True,
            "anything, with the copyright notice",
            ("**/energy/*/4_epochs/*/<cell>/repeat_*/results.json", "**/graphs/generated_graphs_*.json"),
            "training steps and power of 2,200 NAS-Bench-101 cells on a Quadro RTX 6000",
            ("ecnas-4v9e", "ecnas-5v9e"),
        ),
        Source(
            "neusight",
            "https://github.com/sitar-lab/NeuSight",
            "MIT",
            True,
            "anything, with the copyright notice",
            (
                "scripts/asplos/data/dataset/train/**/*.csv",
                "scripts/asplos/data/dataset/test/*.csv",
                "scripts/asplos/label/<GPU>/*.json and .csv",
            ),
            "single forward operators on P4, P100, V100, T4 and A100; BERT, GPT-2 and Switch end to end, node by node",
            ("neusight-train", "neusight-test", "neusight-end-to-end"),
        ),
        Source(
            "orion",
            "https://github.com/eth-easl/orion",
            "MIT",
            True,
            "anything, with the copyright notice",
            ("benchmarking/model_kernels/*",),
            "every kernel of a step in order, with its duration and the SMs that it needs, on a V100",
            ("orion",),
        ),
        Source(
            "lamikr",
            "https://github.com/lamikr/pytorch-gpu-benchmark",
            "MIT",
            True,
            "anything, with the copyright notice",
            ("results/Nvidia/<GPU>/<GPU>__*_benchmark.csv",),
            "27 torchvision networks, forward and backward or inference, in fp32, fp16 and fp64 on 8 GPUs",
            ("lamikr",),
        ),
        Source(
            "schedtune",
            "https://github.com/hadeelalbahar/SchedTune",
            "MIT",
            True,
            "anything, with the copyright notice",
            ("model_stats.csv",),
            "peak training memory of 10 torchvision networks at 4 batch sizes on 5 GPUs",
            ("schedtune",),
        ),
        Source(
            "gpumemnet",
            "https://github.com/itu-rad/GPUMemNet",
            "NOASSERTION",
            False,
            "no licence stated: evaluation only",
            ("Related_works/FakeTensor/fake_tensor.xlsx",),
            "peak training memory of 800 timm networks at 5 batch sizes on an A100, beside FakeTensor's estimates",
            ("gpumemnet",),
        ),
        Source(
            "miso",
            "https://github.com/boringlee24/socc22-miso",
            "MIT",
            True,
            "anything, with the copyright notice",
            ("unet/*_data.npy", "mps/models/logs/mig/*.json", "mps/configs/**/*.json"),
            "1 to 7 training jobs together under three MPS shares on an A100, and each alone on MIG slices",
            ("miso",),
        ),
        Source(
            "parvagpu",
            "https://github.com/MunQ-Lee/ParvaGPU_SC24",
            "MIT",
            True,
            "anything, with the copyright notice",
            ("prof_data/*.csv",),
            "1 to 5 equal inference processes under MPS in every MIG slice of an A100 80 GB",
            ("parvagpu",),
        ),
        Source(
            "rapp",
            "https://github.com/KontonGu/RaPP",
            "Apache-2.0",
            True,
            "anything, with the licence and copyright notice",
            ("data/graph_features_all_models/*.json",),
            "inference of 57 torchvision networks alone under 20 MPS shares on a V100",
            ("rapp",),
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
        UnknownNameError: no such source.
    """
    if name not in SOURCES:
        raise UnknownNameError(
            "unknown source",
            expected=one_of(name, SOURCES),
            got=name,
            hint="`cotenant data sources` shows all",
        )
    return SOURCES[name]


def withheld(names: Iterable[str]) -> list[Source]:
    """The sources among `names` that a shipped model may not learn from.

    Unknown sources (your own) are allowed.
    """
    return [SOURCES[name] for name in sorted(set(names)) if name in SOURCES and not SOURCES[name].may_ship]


def check_may_learn(names: Iterable[str], own_use: bool = False) -> None:
    """Refuse to learn from sources whose licence does not allow redistributing the model.

    Args:
        own_use: the model will not be redistributed, so every source is allowed.

    Raises:
        InputError: such a source is included and `own_use` is not set.
    """
    refused = [] if own_use else withheld(names)
    if refused:
        raise InputError(
            "a redistributable model cannot learn from these rows",
            expected="sources under MIT or Apache-2.0, or your own",
            got=", ".join(f"{source.name} ({source.licence}: {source.use})" for source in refused),
            hint="omit them, or pass --own-use for a model that you keep",
        )
