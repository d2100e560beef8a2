from __future__ import annotations

from pathlib import Path

import pytest

from profiling.devices import (
    canonical,
    catalogue,
    device_names,
    get_device,
    list_devices,
    load_device_file,
    runs_on,
)
from profiling.devices.compute_capability import RESIDENCY, compute_capabilities
from profiling.devices.spec import CARDS_WITH, DEVICE_PRECISIONS, DeviceSpec
from profiling.errors import InputError, UnknownNameError
from profiling.workload import ColocationSet, Workload

NAMES = [
    "a10", "a100", "a100-80gb", "a100-pcie", "a100-pcie-80gb", "a10g", "a30", "a40", "a800-40gb-active",
    "b200", "cpu", "gh200", "gh200-144gb", "gtx-1080-ti", "h100", "h100-nvl", "h100-pcie", "h200", "k80",
    "l4", "l40s", "mi250", "mi300x", "p100", "p4", "quadro-rtx-6000", "rtx-2060-max-q", "rtx-2070-super",
    "rtx-2080-ti", "rtx-3070", "rtx-3080", "rtx-3080-ti", "rtx-3090", "rtx-4060-ti-16gb", "rtx-4070-ti",
    "rtx-4080", "rtx-4090", "rtx-5080", "rtx-5090", "rtx-6000-ada", "rtx-a5000", "rtx-a6000",
    "rtx-pro-6000", "rtx-pro-6000-max-q", "t4", "titan-rtx", "titan-v", "titan-xp", "v100", "v100-32gb",
    "v100-pcie-16gb", "v100-pcie-32gb",
]  # fmt: skip
SPECS = list_devices()
GPUS = [s for s in SPECS if not s.is_cpu]
# Gbit/s per pin of each memory generation: the slowest and the fastest that the vendors of memory sell.
PIN_RATES = {
    "gddr5": (4, 8),
    "gddr5x": (10, 12),
    "gddr6": (10, 20),
    "gddr6x": (19, 24),
    "gddr7": (28, 32),
    "hbm2": (1.4, 2.5),
    "hbm2e": (2.5, 3.65),
    "hbm3": (4.8, 6.4),
    "hbm3e": (6, 9.8),
}
BUSES = {
    "hbm2": 1024,
    "hbm2e": 1024,
    "hbm3": 64,  # by channel, of which an H100 NVL leaves two unused
    "hbm3e": 1024,
}

MINIMAL = """
my-gpu:
  sm_count: 10
  clock_hz: 1.0e9
  fp32_flops: 5.5e12
  memory_bytes: 8589934592
  memory_bandwidth_bytes_per_s: 2e11
"""


@pytest.mark.parametrize("name", NAMES)
def test_every_type_has_a_source(name: str) -> None:
    spec = get_device(name)
    assert spec.name == name
    assert len(spec.source) > 20


def by_name(specs: list[DeviceSpec]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("spec", specs, ids=lambda s: s.name)


def test_the_catalogue_holds_exactly_these_types() -> None:
    assert sorted(s.name for s in SPECS) == sorted(NAMES)


@by_name(GPUS)
def test_cuda_core_rates_follow_from_the_compute_capability(spec: DeviceSpec) -> None:
    known = compute_capabilities()[spec.compute_capability]
    cycles = 2 * spec.sm_count * spec.clock_hz
    assert spec.fp32_flops / cycles == pytest.approx(known.fp32_per_clock, rel=0.02)
    for kind in ("fp64", "fp16", "bf16"):
        rate = getattr(spec, f"{kind}_cuda_flops")
        assert rate / cycles == pytest.approx(getattr(known, f"{kind}_per_clock"), rel=0.02), kind


@by_name(GPUS)
def test_tensor_core_rates_follow_from_the_compute_capability(spec: DeviceSpec) -> None:
    known = compute_capabilities()[spec.compute_capability]
    halved = spec.name.startswith(("rtx-2", "rtx-3", "rtx-4", "rtx-5")) or spec.name == "a10g"
    fp16 = 2 * known.fp16_tensor_per_clock * spec.sm_count * spec.clock_hz * (0.5 if halved else 1)
    if fp16:
        # Data sheets of Hopper and Blackwell count tensor cores at a lower clock than CUDA cores.
        lowest = 0.86 if spec.name == "h100-nvl" else 0.92
        assert lowest < spec.fp16_flops / fp16 < 1.01
    else:
        assert spec.fp16_flops == spec.fp16_cuda_flops
    if spec.tf32_flops:
        assert spec.tf32_flops / spec.fp16_flops == pytest.approx(0.5, rel=0.02)
    if spec.fp8_flops:
        assert spec.fp8_flops / spec.fp16_flops == pytest.approx(2.0, rel=0.03)
    assert spec.bf16_flops in (0, spec.fp16_flops)


@by_name(SPECS)
def test_tensor_cores_are_never_slower_and_wider_types_never_faster(spec: DeviceSpec) -> None:
    have = [p for p in DEVICE_PRECISIONS if spec.supports(p)]
    for precision in have:
        assert spec.peak_flops(precision) >= spec.peak_flops(precision, tensor_core=False) > 0
    order = [p for p in ("fp64", "fp32", "tf32", "fp16", "fp8") if p in have]
    peaks = [spec.peak_flops(p) for p in order]
    assert peaks == sorted(peaks)


@by_name(GPUS)
def test_bandwidth_follows_from_bus_and_memory_clock(spec: DeviceSpec) -> None:
    slow, fast = PIN_RATES[spec.memory_type]
    assert slow <= round(8e-9 * spec.memory_bandwidth_bytes_per_s / spec.memory_bus_bits, 6) <= fast
    assert spec.memory_bus_bits % BUSES.get(spec.memory_type, 32) == 0
    assert 5 * 2**30 < spec.memory_bytes < 200 * 2**30
    assert 2**20 < spec.l2_bytes <= 2**28
    assert 60 <= spec.power_limit_w <= 1000
    assert spec.pcie_bytes_per_s in ((450e9,) if "gh200" in spec.name else (15.75e9, 31.5e9, 63e9))


@by_name(GPUS)
def test_residency_limits_follow_from_the_compute_capability(spec: DeviceSpec) -> None:
    assert all(getattr(spec, name) > 0 for name in RESIDENCY)
    assert spec.max_threads_per_sm / spec.max_warps_per_sm == (64 if spec.vendor == "amd" else 32)


def test_figures_printed_in_data_sheets() -> None:
    a100, v100, t4 = get_device("a100"), get_device("v100"), get_device("t4")
    assert a100.memory_bytes == 40 * 2**30
    assert (a100.peak_flops("fp16"), a100.peak_flops("fp16", tensor_core=False)) == (312e12, 78e12)
    assert (a100.peak_flops("bf16"), a100.peak_flops("bf16", tensor_core=False)) == (312e12, 39e12)
    assert (a100.peak_flops("fp64"), a100.peak_flops("fp64", tensor_core=False)) == (19.5e12, 9.7e12)
    assert (a100.peak_flops("tf32"), a100.peak_flops("tf32", tensor_core=False)) == (156e12, 19.5e12)
    assert a100.peak_flops("amp") == a100.peak_flops("fp16")
    assert (v100.peak_flops("fp32"), v100.peak_flops("amp")) == (15.7e12, 125e12)
    assert (t4.max_threads_per_sm, a100.max_threads_per_sm) == (1024, 2048)
    assert get_device("h100").peak_flops("fp8") == 1978.9e12
    assert get_device("rtx-4090").peak_flops("fp16") == 165.2e12  # and not the 330.3 with FP16 accumulation
    assert get_device("rtx-5080").peak_flops("fp16") == 112.6e12
    assert get_device("h100-nvl").peak_flops("fp16") == 835.5e12  # and not the 1671 with sparsity
    assert get_device("mi300x").peak_flops("fp32") == 163.4e12
    assert get_device("rtx-pro-6000-max-q").power_limit_w == 300


def test_half_precision_without_hardware_support_runs_as_fp32() -> None:
    for name in ("gtx-1080-ti", "p4", "k80", "titan-xp", "cpu"):
        spec = get_device(name)
        assert spec.peak_flops("fp16") == spec.peak_flops("amp") == spec.fp32_flops
    assert get_device("p100").peak_flops("fp16") == 18.7e12
    assert get_device("cpu").peak_flops("bf16") == get_device("cpu").fp32_flops


@pytest.mark.parametrize(
    ("name", "precision", "instead"),
    [
        ("v100", "tf32", "precision=fp32"),
        ("t4", "bf16", "precision=amp"),
        ("a100", "fp8", "precision=amp"),
        ("rtx-2080-ti", "tf32", "rtx-3090"),
        ("mi250", "tf32", "a100"),
        ("cpu", "tf32", "a100"),
    ],
)
def test_an_unsupported_precision_is_an_error_that_names_cards(
    name: str, precision: str, instead: str
) -> None:
    spec = get_device(name)
    assert not spec.supports(precision)
    assert not runs_on(name, precision)
    with pytest.raises(InputError, match=instead) as caught:
        spec.check_precision(precision)
    assert CARDS_WITH[precision][0] in caught.value.message
    with pytest.raises(InputError, match=f"{name} has no {precision.upper()}"):
        spec.peak_flops(precision)


def test_cards_named_in_errors_have_the_precision() -> None:
    for precision, names in CARDS_WITH.items():
        for name in names:
            assert runs_on(name, precision), (name, precision)


def test_unknown_precisions_and_devices() -> None:
    with pytest.raises(InputError, match="unknown precision"):
        get_device("a100").peak_flops("fp13")
    assert runs_on("my-own-device", "fp8")  # an unknown device is reported elsewhere


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
    with pytest.raises(InputError, match="give bf16_flops in its device file"):
        spec.check_precision("bf16")


def test_a_device_file_is_reread_only_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL)
    monkeypatch.setenv("COTENANT_DEVICES", str(path))
    read: list[Path | str] = []

    def counted(path: Path | str) -> list[DeviceSpec]:
        read.append(path)
        return load_device_file(path)

    monkeypatch.setattr(catalogue, "load_device_file", counted)
    assert {get_device("my-gpu").sm_count for _ in range(100)} == {10}
    assert get_device("v100").name == "v100"
    assert len(read) == 1
    path.write_text(MINIMAL.replace("sm_count: 10", "sm_count: 1000"))
    assert get_device("my-gpu").sm_count == 1000
    assert "my-gpu" in device_names()
    assert len(read) == 2


def test_a_damaged_or_deleted_device_file_keeps_its_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mine.yaml"
    monkeypatch.setenv("COTENANT_DEVICES", str(path))
    with pytest.raises(InputError, match="cannot be read"):
        get_device("v100")
    path.write_text(MINIMAL)
    assert get_device("my-gpu").sm_count == 10
    path.write_text("x: [")
    assert {get_device(name).name for _ in range(5) for name in ("my-gpu", "v100")} == {"my-gpu", "v100"}
    assert [record.message for record in caplog.records] == [
        f"keeping the device types read earlier: {_fault(path)}"
    ]
    path.unlink()
    assert get_device("my-gpu").sm_count == 10
    path.write_text(MINIMAL.replace("sm_count: 10", "sm_count: 1000"))
    assert get_device("my-gpu").sm_count == 1000


def _fault(path: Path) -> str:
    with pytest.raises(InputError) as raised:
        load_device_file(path)
    return raised.value.message


def test_a_compute_capability_in_a_device_file_implies_defaults(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL + '  compute_capability: "8.0"\n  fp16_flops: 2e13\n')
    (spec,) = load_device_file(path)
    assert (spec.max_warps_per_sm, spec.registers_per_sm) == (64, 65536)
    assert spec.peak_flops("fp64") == 2 * 32 * 10 * 1e9
    assert (spec.peak_flops("fp16"), spec.peak_flops("fp16", tensor_core=False)) == (2e13, 5.5e12)


@pytest.mark.parametrize("name", ["my_gpu", "My GPU", "a100-40gb"])
def test_a_device_file_may_use_any_spelling(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINIMAL.replace("my-gpu", name))
    monkeypatch.setenv("COTENANT_DEVICES", str(path))
    assert get_device(name).sm_count == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "unexpected structure"),
        ("x: {sm_count: 3}\n", "out of range"),
        (MINIMAL + "  cores: 4\n", "unknown field"),
        (MINIMAL.replace("10", "many"), "has the wrong type"),
        (MINIMAL.replace("5.5e12", "-1"), "has the wrong type"),
        ("x: [", "not YAML"),
        (MINIMAL + MINIMAL, "key 'my-gpu' is repeated"),
        (MINIMAL + MINIMAL.replace("my-gpu", "My_GPU"), "has 'my-gpu' twice"),
        (MINIMAL.replace("my-gpu", "'my-gpu:mig=1g'"), "cannot be requested"),
        (MINIMAL + "  1: 4\n", "unknown field"),
    ],
)
def test_invalid_device_files_are_explained(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_device_file(path)


def test_missing_device_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_device_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ("V100", "v100"),
        ("v100-16gb", "v100"),
        ("GH200 96GB", "gh200"),
        ("A100:mig=3g.20gb", "a100:mig=3g"),
        ("abacus", "abacus"),
        ("a100:mig=9g", "a100:mig=9g"),
        ("a100:x", "a100:x"),
    ],
)
def test_one_name_per_type(given: str, listed: str) -> None:
    """Measurements and observations of a type are found under any spelling."""
    assert canonical(given) == listed
    assert ColocationSet(given, (Workload("resnet18-cifar"),)).device == listed


def test_a_user_defined_name_precedes_an_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "V100-16GB: {sm_count: 58, clock_hz: 2e+9, fp32_flops: 3e+13, memory_bytes: 2.4e+10,"
        " memory_bandwidth_bytes_per_s: 3e+11}"
    )
    monkeypatch.setenv("COTENANT_DEVICES", str(mine))
    assert canonical("V100-16GB") == "v100-16gb"
    mine.write_text("{}")
    assert canonical("V100-16GB") == "v100"


@pytest.mark.parametrize("with_file", [False, True])
def test_a_name_is_resolved_once(with_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies query thousands of sets; with a device file, each look-up took as long as a prediction."""
    (tmp_path / "mine.yaml").write_text("{}")
    monkeypatch.setenv("COTENANT_DEVICES", str(tmp_path / "mine.yaml") if with_file else "")
    looked_up: list[str] = []
    whole = catalogue.split_device

    def split(name: str) -> tuple[str, str | None]:
        looked_up.append(name)
        return whole(name)

    monkeypatch.setattr(catalogue, "split_device", split)
    for _ in range(10):
        assert canonical("H100:mig=2g.20gb") == "h100:mig=2g"
    assert len(looked_up) <= 2, "once for its type, and once for the slice"
