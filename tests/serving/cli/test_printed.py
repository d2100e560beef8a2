"""What commands print for people says the same as their JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from serving.store import Store
from tests.commands import printed, refused

JOBS = [f"--job=ppo-lunarlander:batch_size={2**k}" for k in range(3, 12)]


def test_a_small_matrix_is_a_table_and_a_large_one_its_extremes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "[pairs].svg"
    small = printed(capsys, "matrix", "--device", "v100", *JOBS[:2], "--plot", plot)
    matrix = json.loads(printed(capsys, "matrix", "--device", "v100", *JOBS, "--json"))
    assert f"{matrix['slowdown'][0][1]:.2f}" in small.splitlines()[1]
    assert small.splitlines()[1].startswith("1  ppo-lunarlander:batch_size=8")
    assert f"wrote {plot}" in small
    assert plot.is_file()
    large = printed(capsys, "matrix", "--device", "v100", *JOBS).splitlines()
    assert large[0].startswith("45 of 45 pairs fit.")
    done = [float(line.split()[0]) for line in large if line.startswith("  ")]
    assert len(done) == 10
    assert done == sorted(done, reverse=True)
    pairs = [
        1 / matrix["slowdown"][a][b] + 1 / matrix["slowdown"][b][a] for a in range(9) for b in range(a, 9)
    ]
    assert (done[0], done[-1]) == pytest.approx((max(pairs), min(pairs)), abs=0.006)


def test_frozen_layers_of_a_capture_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "capture", "td3-bipedalwalker")
    frozen = json.loads(printed(capsys, "capture", "td3-bipedalwalker", "--json"))["options"]["frozen_layers"]
    assert f"{len(frozen)} layers frozen" in out
    assert str(frozen[:3])[1:-1] not in out


def test_an_option_of_capture_overrides_the_spec(capsys: pytest.CaptureFixture[str]) -> None:
    hashes = {
        json.loads(printed(capsys, "capture", *ask, "--json"))["hash"]
        for ask in (
            ["td3-bipedalwalker"],
            ["td3-bipedalwalker:activation_checkpointing=true", "--no-activation-checkpointing"],
        )
    }
    assert len(hashes) == 1


def test_networks_of_a_collection(capsys: pytest.CaptureFixture[str]) -> None:
    entries = json.loads(printed(capsys, "zoo", "list", "--collection", "torchvision", "--json"))
    lines = printed(capsys, "zoo", "list", "--collection", "torchvision").splitlines()
    assert [line.split()[0] for line in lines] == [entry["name"] for entry in entries]
    assert "unknown collection" in refused(capsys, "zoo", "list", "--collection", "nothing")


def test_tokens_are_listed_with_their_validity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = ("--database", f"sqlite:///{tmp_path}/tokens.db")
    days = {time.strftime("%Y-%m-%d", time.gmtime(time.time() + 3 * 86_400))}
    for name, options in (("ada", ["--days", "3"]), ("bob", ["-s", "admin"]), ("eve", [])):
        printed(capsys, "serve", "token", "add", name, "-s", "read", *options, *database)
    assert "bob" in printed(capsys, "serve", "token", "revoke", "bob", *database)
    lines = printed(capsys, "serve", "token", "list", *database).splitlines()
    said = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:]}
    days.add(time.strftime("%Y-%m-%d", time.gmtime(time.time() + 3 * 86_400)))
    assert said["ada"] in {f"read until {day}" for day in days}
    assert set(said["bob"].replace(",", "").split()) == {"read", "admin", "revoked"}
    assert said["eve"] == "read yes"
    Store(database[1]).close()


def test_a_device_is_shown_with_all_of_its_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    spec = json.loads(printed(capsys, "devices", "show", "v100", "--json"))
    shown = dict(line.split(maxsplit=1) for line in printed(capsys, "devices", "show", "v100").splitlines())
    assert set(shown) == set(spec)
    assert shown["sm_count"].strip() == str(spec["sm_count"])
    assert float(shown["memory_bytes"].replace(",", "")) == spec["memory_bytes"]


@pytest.mark.parametrize("options", [["--device", "big"], ["--device", "=a100"], ["--period", "0"]])
def test_a_controllers_options_are_checked_before_it_connects(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for system in ("slurm", "kubernetes"):
        told = refused(capsys, "controller", system, *options)
        assert "TYPE=CATALOGUE_NAME" in told or "period_s is out of range" in told
