from __future__ import annotations

from pathlib import Path

import pytest

from profiling.devices import get_device, list_devices, load_device_file
from profiling.errors import InputError, UnknownNameError

NAMES = [
    "k80",
    "p100",
    "v100",
    "t4",
    "a100",
    "h100",
    "h200",
    "rtx-2080-ti",
    "rtx-3090",
    "rtx-4090",
    "titan-xp",
    "quadro-rtx-6000",
    "titan-rtx",
    "cpu",
]

MINIMAL = """
my-gpu:
  sm_count: 10
  clock_hz: 1.0e9
  fp32_flops: 5.5e12
  memory_bytes: 8589934592
  memory_bandwidth_bytes_per_s: 2e11
"""


@pytest.mark.parametrize("name", NAMES)
def test_every_named_type_is_there_with_its_source(name: str) -> None:
    spec = get_device(name)
    assert spec.name == name
    assert len(spec.source) > 20


@pytest.mark.parametrize("spec", [s for s in list_devices() if s.vendor == "nvidia"], ids=lambda s: s.name)
def test_peak_is_what_cores_and_clock_give(spec) -> None:
    # Two operations per core and cycle; 64, 128 or 192 cores per multiprocessor.
    cores = spec.fp32_flops / (2 * spec.clock_hz * spec.sm_count)
    assert min(abs(cores / n - 1) for n in (64, 128, 192)) < 0.06
    assert spec.memory_bytes > 8 * 2**30
    assert spec.bf16_flops == 0 or float(spec.compute_capability) >= 8


def test_mig_profiles_belong_to_types_that_have_them() -> None:
    assert "1g.5gb" in get_device("a100").mig_profiles
    assert not get_device("v100").mig_profiles


def test_spelling_is_lenient_and_unknown_names_get_a_hint() -> None:
    assert get_device("RTX 3090").name == "rtx-3090"
    with pytest.raises(UnknownNameError, match="rtx-3090"):
        get_device("rtx-3091")


def test_user_device_from_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL)
    (spec,) = load_device_file(path)
    # YAML 1.1 reads 5.5e12 as text.
    assert spec.fp32_flops == 5.5e12
    assert spec.memory_bandwidth_bytes_per_s == 2e11
    assert spec.vendor == "custom"
    monkeypatch.setenv("COTENANT_DEVICES", str(path))
    assert get_device("my-gpu") == spec
    assert get_device("v100").name == "v100"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "another form"),
        ("x: {sm_count: 3}\n", "out of range"),
        (MINIMAL + "  cores: 4\n", "unknown field"),
        (MINIMAL.replace("10", "many"), "not of its type"),
        (MINIMAL.replace("5.5e12", "-1"), "not of its type"),
        ("x: [", "not YAML"),
    ],
)
def test_bad_device_files_say_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_device_file(path)


def test_missing_device_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_device_file(tmp_path / "none.yaml")
