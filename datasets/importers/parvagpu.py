"""Equal inference processes in MIG slices of an A100 80 GB (ParvaGPU; MIT): `prof_data/NETWORK.csv`.

Lee et al., SC 2024. Throughput is in images/s per process; the processes of a row run under MPS inside one
slice. A throughput of 0 means out of memory. Torch, TF32 convolutions, 224 px for every network, a copy from
pageable memory in each step.
"""

from __future__ import annotations

from pathlib import Path

from datasets.importers.base import CsvRows, Import, find_files, spec

CARD, IMAGE_SIZE = "a100-80gb", 224
# File names that differ from torchvision's.
NETWORKS = {"inceptionv3": "inception_v3"}
_COLUMNS = ("Mig instance", "Batch size", "Workload Number", "Throughput")


def read(folder: Path) -> Import:
    """Read every `prof_data/*.csv` below `folder`.

    Raises:
        InputError: there are none, or one is malformed; with line and column.
    """
    result = Import("parvagpu")
    for path in find_files(folder, "prof_data/*.csv"):
        rows = [
            (
                row.integer("Mig instance", least=1),
                row.integer("Batch size", least=1),
                row.integer("Workload Number", least=1),
                row.number("Throughput", least=0),
            )
            for row in CsvRows(path, _COLUMNS)
        ]
        result.read += len(rows)
        alone = {(gpcs, batch): rate for gpcs, batch, processes, rate in rows if processes == 1 and rate > 0}
        network = f"torchvision/{NETWORKS.get(path.stem, path.stem)}"
        for gpcs, batch, processes, rate in rows:
            if rate == 0:
                result.dropped["out of memory"] += 1
                continue
            workload = spec(
                network, batch_size=batch, image_size=IMAGE_SIZE, mode="inference", precision="tf32"
            )
            device = f"{CARD}:mig={gpcs}g"
            if processes == 1:
                result.add_workload("parvagpu", workload)
                result.add(
                    "solo",
                    "parvagpu",
                    device=device,
                    workload=workload,
                    step_time_s=batch / rate,
                    samples_per_s=rate,
                    gpus=1,
                )
            elif (gpcs, batch) not in alone:
                result.dropped["set whose member did not run alone"] += 1
            else:
                _add_set(result, device, workload, processes, batch / rate, batch / alone[gpcs, batch])
    result.notes.append(
        "members of a set are equal processes: one measurement stands in the rows of all of them"
    )
    return result


def _add_set(
    result: Import, device: str, workload: str, processes: int, step_time_s: float, solo_step_time_s: float
) -> None:
    for member in range(processes):
        result.add(
            "colocation",
            "parvagpu",
            set_id=f"parvagpu/{device}/{processes} x {workload}",
            member=member,
            device=device,
            sharing="mps",
            workload=workload,
            throughput_ratio=solo_step_time_s / step_time_s,
            step_time_s=step_time_s,
            solo_step_time_s=solo_step_time_s,
            censored=False,
            is_target=True,
        )
