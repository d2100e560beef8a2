"""Which source in a folder of tables supplies a cluster's ground truth."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from datasets import tables
from profiling.errors import InputError, UnknownNameError
from profiling.workload import ColocationSet
from scheduling.simulator.measured import measured_truth

SOLO = [
    ("one", "one-2019", "v100"), ("one", "one-2019", "k80"), ("one", "one-2020", "v100"),
    ("two", "two", "v100"), ("three", "three", "a100"),
]  # fmt: skip
MEMBERS = ("resnet18-cifar:batch_size=64", "lstm-wikitext2:batch_size=20")


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [(*row, name) for row in SOLO for name in MEMBERS]
    solo = pd.DataFrame(rows, columns=["source", "campaign", "device", "workload"]).assign(
        gpus=1, memory_bytes=1e9, utilization_ratio=0.5, disturbed=False
    )
    solo["step_time_s"] = solo.campaign.map({"one-2019": 0.1, "one-2020": 0.2, "two": 0.3, "three": 0.4})
    together = solo.assign(
        set_id=solo.campaign + solo.device,
        member=[0, 1] * len(SOLO),
        throughput_ratio=0.6,
        set_memory_bytes=2e9,
    )
    frames = {"solo": solo, "colocation": together}
    # Another process disturbed a second measurement of everything.
    for name, frame in frames.items():
        other = frame.assign(campaign=frame.campaign.where(frame.source == "three", "other"), disturbed=True)
        frames[name] = pd.concat([frame, other.assign(step_time_s=9.0)], ignore_index=True)
    monkeypatch.setattr(tables, "read_table", lambda _, name: frames[name])
    return Path("tables")


def steps(data: Path, devices: list[str], source: str | None = None) -> set[float]:
    return {solo.step_time_s for solo in measured_truth(data, devices, source).solo.values()}


pytestmark = pytest.mark.filterwarnings("ignore:left out")


def test_the_only_source_that_covers_the_cluster_is_taken(data: Path) -> None:
    # of the last campaign by name that covers it, too
    assert steps(data, ["v100", "k80"]) == {0.1}
    assert steps(data, ["a100"]) == {0.4}
    assert measured_truth(data, ["v100", "k80"]).ratios


def test_disturbed_runs_are_no_truth(data: Path) -> None:
    with pytest.warns(UserWarning, match="left out: 10 of 20 solo runs"):
        assert steps(data, ["a100"]) == {0.4}


def test_one_of_several_sources_must_be_chosen(data: Path) -> None:
    with pytest.raises(InputError, match=r"several sources.*--source, got one, two"):
        measured_truth(data, ["v100"])
    assert steps(data, ["v100"], "two") == {0.3}
    assert steps(data, ["v100"], "one") == {0.2}


def test_unknown_sources_and_those_without_the_types(data: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"one of three, one, two, got thre\."):
        measured_truth(data, ["v100"], "thre")
    with pytest.raises(
        InputError, match=r"by source three: expected v100, k80, got three \(a100\); use --source one"
    ):
        measured_truth(data, ["v100", "k80"], "three")
    with pytest.raises(InputError, match=r"got one \(k80, v100\); three \(a100\); two \(v100\)"):
        measured_truth(data, ["v100", "a100"])


def test_slices_of_a_card(tmp_path: Path) -> None:
    """A source of slices alone, as MISO's and ParvaGPU's; the largest stands for the card."""
    name = MEMBERS[0]
    times = {"7g": 0.1, "3g": 0.2, "1g": 0.6}
    rows = {
        "workload": name,
        "source": "slices",
        "campaign": "slices",
        "licence": "MIT",
        "origin": "measured",
    }
    solo = [
        {"device": f"a100:mig={part}", "step_time_s": step, "gpus": 1, **rows} for part, step in times.items()
    ]
    tables.write_table(tmp_path, "solo", tables.make_table("solo", solo))
    truth = measured_truth(tmp_path, ["a100"])
    (job,) = truth.workloads("a100")
    alone = [ColocationSet(device, (job,)) for device in ("a100", "a100:mig=3g", "a100:mig=1g.10gb")]
    assert truth.predict_arrays(alone).step_time_s[:, 0].tolist() == [0.1, 0.2, 0.6]
    assert not truth.predict_arrays([ColocationSet("a100:mig=4g", (job,))]).fits[0]  # not measured there
    pair = ColocationSet("a100:mig=3g", (job, job), "mps")
    half = truth.predict_arrays([pair]).step_time_s[0].tolist()  # half the slice each, not 15 % more
    assert half == pytest.approx([0.4, 0.4])

    together = [
        {
            "set_id": "2x",
            "member": k,
            "device": "a100:mig=3g",
            "sharing": "mps",
            "throughput_ratio": 0.8,
            **rows,
        }
        for k in range(2)
    ]
    tables.write_table(tmp_path, "colocation", tables.make_table("colocation", together))
    assert measured_truth(tmp_path, ["a100"]).predict_arrays([pair]).step_time_s[0].tolist() == [0.25, 0.25]
    with pytest.raises(InputError, match="expected h100"):
        measured_truth(tmp_path, ["h100"])
