"""Predicted throughputs compared with published ones: `python -m benchmarks.plausibility`.

The publishers' software differs from a plain PyTorch step (fused optimisers, CUDA graphs, libraries of
another year), so a factor of up to 1.3 counts as plausible, and nothing may beat the device's peak. The cost
model was trained on none of these figures. NVIDIA's come from its own scripts of 2019 to 2021, Lambda's from
the same scripts with libraries of 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import record
from models.cost import default_cost_model
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.workload import Workload

REPOSITORY = "https://github.com/NVIDIA/DeepLearningExamples/blob/master/PyTorch"
RESNET = f"{REPOSITORY}/Classification/ConvNets/resnet50v1.5/README.md"
EFFICIENTNET = f"{REPOSITORY}/Classification/ConvNets/efficientnet/README.md"
BERT = f"{REPOSITORY}/LanguageModeling/BERT/README.md"
LAMBDA = (
    "https://github.com/lambdal/deeplearning-benchmark/blob/master/pytorch/pytorch-train-throughput-{}.csv"
)
NANOGPT = "https://github.com/karpathy/nanoGPT/issues/110"
PLAUSIBLE = 1.3
NETWORKS = ("resnet50", "efficientnet", "bert", "gpt", "gnmt")


@dataclass(frozen=True, slots=True)
class Case:
    """A published throughput of one GPU, in samples per second."""

    spec: str
    device: str
    samples_per_s: float
    source: str


def _resnet(device: str, samples_per_s: float, options: str) -> Case:
    return Case(f"torchvision/resnet50:data_on_device=true,{options}", device, samples_per_s, RESNET)


def _efficientnet(name: str, device: str, samples_per_s: float, options: str) -> Case:
    spec = f"torchvision/efficientnet_{name}:data_on_device=true,{options}"
    return Case(spec, device, samples_per_s, EFFICIENTNET)


def _bert(device: str, samples_per_s: float, options: str) -> Case:
    spec = f"hf/bert-large-eager:optimizer=adam,data_on_device=true,{options}"
    return Case(spec, device, samples_per_s, BERT)


def _lambda(spec: str, device: str, samples_per_s: float, batch_size: int, precision: str) -> Case:
    """Case from Lambda's tables, with batch sizes from `pytorch-train-bs-*.csv` next to them.

    BERT is fine-tuned on SQuAD, in apex' O2 where the table says FP16.
    """
    table = "fp32" if precision in ("fp32", "tf32") else "fp16"
    options = f"data_on_device=true,batch_size={batch_size},precision={precision}"
    return Case(f"{spec}{',' if ':' in spec else ':'}{options}", device, samples_per_s, LAMBDA.format(table))


def _squad(size: str, device: str, samples_per_s: float, batch_size: int, precision: str) -> Case:
    spec = f"hf/bert-{size}-eager:sequence_length=384,optimizer=adam"
    return _lambda(spec, device, samples_per_s, batch_size, precision)


NHWC = "precision=amp,memory_layout=channels-last"
CASES = (
    _resnet("a100-80gb", 938, "batch_size=256,precision=tf32"),
    _resnet("a100-80gb", 2470, f"batch_size=256,{NHWC}"),
    _resnet("v100", 367, "batch_size=128,precision=fp32"),
    _resnet("v100", 1200, f"batch_size=256,{NHWC}"),
    _resnet("v100", 1127, "batch_size=32,precision=fp32,mode=inference"),
    _resnet("v100", 1229, "batch_size=128,precision=fp32,mode=inference"),
    _resnet("v100", 3249, f"batch_size=128,{NHWC},mode=inference"),
    _resnet("t4", 420, "batch_size=32,precision=fp32,mode=inference"),
    _resnet("t4", 426, "batch_size=128,precision=fp32,mode=inference"),
    _resnet("t4", 1190, f"batch_size=128,{NHWC},mode=inference"),
    _efficientnet("b0", "a100-80gb", 1078, "batch_size=256,precision=tf32"),
    _efficientnet("b0", "a100-80gb", 2489, f"batch_size=256,{NHWC}"),
    _efficientnet("b0", "v100", 655, "batch_size=128,precision=fp32"),
    _efficientnet("b0", "v100", 1301, f"batch_size=128,{NHWC}"),
    _efficientnet("b4", "a100-80gb", 157, "image_size=380,batch_size=64,precision=tf32"),
    _efficientnet("b4", "a100-80gb", 331, f"image_size=380,batch_size=128,{NHWC}"),
    _efficientnet("b4", "v100", 83, "image_size=380,batch_size=32,precision=fp32"),
    _efficientnet("b4", "v100", 204, f"image_size=380,batch_size=64,{NHWC}"),
    _bert("v100", 33.36, "batch_size=8,sequence_length=128,precision=fp32"),
    _bert("v100", 125.44, "batch_size=16,sequence_length=128,precision=fp16"),
    _bert("v100", 40.32, "batch_size=32,sequence_length=128,precision=fp32"),
    _bert("v100", 171.52, "batch_size=64,sequence_length=128,precision=fp16"),
    _bert("v100", 8.36, "batch_size=4,sequence_length=512,precision=fp32"),
    _bert("v100", 30.08, "batch_size=8,sequence_length=512,precision=fp16"),
    _bert("v100", 28.32, "batch_size=2,sequence_length=512,precision=fp32,mode=inference"),
    _bert("v100", 94.36, "batch_size=4,sequence_length=512,precision=fp16,mode=inference"),
    _lambda("torchvision/resnet50", "v100", 369, 128, "fp32"),
    _lambda("torchvision/resnet50", "v100", 833, 256, "amp"),
    _lambda("torchvision/resnet50", "a100-80gb", 1066, 640, "tf32"),
    _lambda("torchvision/resnet50", "a100-80gb", 1582, 1280, "amp"),
    _lambda("torchvision/resnet50", "h100", 1753, 640, "tf32"),
    _lambda("torchvision/resnet50", "h100", 2616, 1280, "amp"),
    _squad("base", "v100", 42, 24, "fp32"),
    _squad("base", "v100", 189, 48, "fp16"),
    _squad("base", "a100-80gb", 239, 172, "tf32"),
    _squad("base", "a100-80gb", 443, 320, "fp16"),
    _squad("base", "h100", 408, 172, "tf32"),
    _squad("base", "h100", 812, 320, "fp16"),
    _squad("large", "v100", 12, 8, "fp32"),
    _squad("large", "v100", 57, 16, "fp16"),
    _squad("large", "a100-80gb", 75, 64, "tf32"),
    _squad("large", "a100-80gb", 152, 112, "fp16"),
    _squad("large", "h100", 141, 64, "tf32"),
    _squad("large", "h100", 301, 112, "fp16"),
    # GNMT is stated in tokens per second of both languages; sentences of WMT16 have about 25 in each.
    _lambda("gnmt-wmt16:sequence_length=25", "v100", 24_109 / 50, 128, "fp32"),
    _lambda("gnmt-wmt16:sequence_length=25", "v100", 79_111 / 50, 256, "amp"),
    _lambda("gnmt-wmt16:sequence_length=25", "a100-80gb", 129_911 / 50, 1024, "tf32"),
    _lambda("gnmt-wmt16:sequence_length=25", "a100-80gb", 243_500 / 50, 1520, "amp"),
    _lambda("gnmt-wmt16:sequence_length=25", "h100", 220_229 / 50, 1024, "tf32"),
    _lambda("gnmt-wmt16:sequence_length=25", "h100", 467_071 / 50, 1520, "amp"),
    # 562 ms for five passes of 12 sequences on each of eight GPUs.
    Case(
        "gpt-125m:batch_size=12,sequence_length=1024,precision=amp,compiler=compile,data_on_device=true",
        "a100",
        106.8,
        NANOGPT,
    ),
)


def compare(case: Case) -> dict[str, Any]:
    """Compare predicted and published throughput of one case."""
    workload, device = Workload.parse(case.spec), get_device(case.device)
    graph = graph_for(workload.captured())
    cost = default_cost_model().cost(graph, device, workload)
    predicted = graph.batch_size / cost.step_time_s
    return {
        "workload": case.spec,
        "device": case.device,
        "published_samples_per_s": case.samples_per_s,
        "predicted_samples_per_s": round(predicted, 1),
        "factor": round(predicted / case.samples_per_s, 3),
        "is_plausible": abs(math.log(predicted / case.samples_per_s)) <= math.log(PLAUSIBLE),
        "beats_peak": cost.step_time_s < cost.floor_s,
        "source": case.source,
    }


def main() -> None:
    benchmark_parser(__file__, __doc__).parse_args()
    rows = [compare(case) for case in CASES]
    for row in rows:
        mark = " " if row["is_plausible"] else "*"
        print(
            f"{mark} {row['device']:10} {row['workload']:100.100} {row['published_samples_per_s']:8.1f} "
            f"{row['predicted_samples_per_s']:8.1f} {row['factor']:6.2f}"
        )
    within = sum(row["is_plausible"] for row in rows)
    print(f"{within} of {len(rows)} within a factor of {PLAUSIBLE}")
    for network in NETWORKS:
        of_network = [row["is_plausible"] for row in rows if network in row["workload"]]
        print(f"  {sum(of_network)} of {len(of_network)}: {network}")
    record(
        "plausibility",
        {
            "cases": rows,
            "within_1.3_ratio": within / len(rows),
            "beating_peak": sum(row["beats_peak"] for row in rows),
        },
    )


if __name__ == "__main__":
    run_benchmark(__file__, main)
