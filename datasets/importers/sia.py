"""Step and exposed synchronisation times of Sia (Jayaram Subramanya et al., SOSP 2023; no licence stated).

`sia-simulator/traces/APPLICATION/placements-CLUSTER.csv` has local batch size, placement as one digit of GPUs
per node, step time, and the exposed part of gradient synchronisation.
"""

from __future__ import annotations

from pathlib import Path

from datasets.importers.base import CsvRows, Import, lacks_files, spec
from profiling.errors import InputError
from profiling.zoo.aliases import ALIASES

# Machines as described by upstream's simulator.
DEVICES = {
    "aws": "t4",
    "rtx": "rtx-2080-ti",
    "quad": "quadro-rtx-6000",
    "dgx": "a100",
    "dgx-ext": "a100",
    "azure": "v100",
}
APPLICATIONS = ("cifar10", "imagenet", "deepspeech2", "bert", "yolov3", "ncf")
_COLUMNS = ("placement", "local_bsz", "step_time", "sync_time")


def read(folder: Path) -> Import:
    """Read every `placements-*.csv` below `folder`.

    Raises:
        InputError: there are none, or one is malformed; with line and column.
    """
    result = Import("sia")
    root = next(
        (path for path in (folder / "sia-simulator" / "traces", folder / "traces", folder) if path.is_dir()),
        None,
    )
    files = sorted(root.glob("*/placements*.csv")) if root else []
    if not files:
        raise lacks_files(folder, "sia-simulator/traces/APPLICATION/placements-CLUSTER.csv, or traces/...")
    seen: dict[str, set[tuple[str, ...]]] = {}
    # dgx-ext before dgx, which repeats a part of it.
    for path in sorted(
        files, key=lambda path: (path.parent.name, path.stem != "placements-dgx-ext", path.name)
    ):
        _read_file(result, path, seen.setdefault(path.parent.name, set()))
    result.notes.append(
        "sync_time_s is the exposed part of the synchronisation; azure is V100 32 GB, dgx A100 40 GB"
    )
    result.notes.append("gpt_pmp is a hybrid-parallel job: its times do not mean what the others' do")
    return result


def _read_file(result: Import, path: Path, seen: set[tuple[str, ...]]) -> None:
    application, cluster = path.parent.name, path.stem.removeprefix("placements").removeprefix("-")
    if cluster and cluster not in DEVICES:
        raise InputError(f"{path}: unknown cluster", expected="one of " + ", ".join(DEVICES), got=cluster)
    if application not in (*APPLICATIONS, "gpt_pmp"):
        raise InputError(
            f"{path}: unknown application",
            expected="one of " + ", ".join(APPLICATIONS),
            got=application,
        )
    for row in CsvRows(path, _COLUMNS):
        result.read += 1
        placement = row.text("placement")
        if not placement.isdigit() or "0" in placement:
            raise row.fault("placement", "one digit per node with its GPU count, such as 44")
        batch = row.integer("local_bsz", least=1)
        step, sync = row.number("step_time", above=0), row.number("sync_time", least=0)
        if not cluster:
            result.dropped["placements.csv, a copy of the aws file"] += 1
            continue
        if application == "gpt_pmp":
            result.dropped["hybrid-parallel job (gpt_pmp)"] += 1
            continue
        key = (DEVICES[cluster], placement, str(batch), repr(step))
        if key in seen:
            result.dropped["repeated from another file of the same GPU type"] += 1
            continue
        seen.add(key)
        model, campaign = ALIASES[application], f"sia-{cluster}"
        workload = spec(model, batch_size=batch)
        result.add_workload(campaign, workload, dataset=application)
        result.add(
            "scaling",
            campaign,
            device=DEVICES[cluster],
            workload=workload,
            gpus=sum(map(int, placement)),
            nodes=len(placement),
            placement="-".join(placement),
            step_time_s=step,
            sync_time_s=sync,
        )
