"""Tables of figures on the pages match the results in `benchmarks/results`."""

from __future__ import annotations

import re

import pytest

from benchmarks.protocols import FOLDER, table, targets
from profiling.files import read_json
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs/benchmarks.md").read_text().splitlines()
PROTOCOLS = (ROOT / "docs/protocols.md").read_text().splitlines()
README = " ".join((ROOT / "README.md").read_text().split())


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_protocols() -> None:
    stored = set(table().splitlines()[2:])
    written = {
        re.sub(r" \((\w+) seeds\)", "", line)
        for line in PROTOCOLS
        if len(cells(line)) == 10 and (FOLDER / cells(line)[0]).is_dir()
    }
    assert written == stored


def test_targets() -> None:
    """The page may add to the printed table, but must not omit anything."""
    for line in targets().splitlines()[2:]:
        name, *said = cells(line)
        (row,) = [
            cells(other) for other in PAGE if re.match(rf"\| {name}[ (]", other) and len(cells(other)) == 5
        ]
        assert all(part in whole for part, whole in zip(said, row[1:], strict=True)), name


@pytest.mark.parametrize("campaign", ["lucid", "gavel2019", "gavel2020", "miso"])
def test_few_shot(campaign: str) -> None:
    name = f"{campaign}-few-shot"
    stored = [
        cells(line.replace(", coverage", ", coverage of 90 % intervals"))
        for line in (FOLDER / name / "results.md").read_text().splitlines()
    ]
    written = [cells(line)[1:] for line in [*PAGE, *PROTOCOLS] if line.startswith(f"| {name} |")]
    assert written
    assert [row for row in written if row not in stored and row[0] != "*target*"] == []


def test_readme() -> None:
    said = targets()
    for campaign, title in (("lucid", "Lucid"), ("gavel2019", "Gavel 2019"), ("gavel2020", "Gavel 2020")):
        (goal, ours) = re.findall(rf"\| {campaign}-by-model \| ([\d.]+) %.*e-ggat ([\d.]+) %", said)[0]
        assert re.search(rf"\| {title}, [^|]* \| {ours} % \| {float(goal):g} % \|", README), campaign
        stored = (FOLDER / f"{campaign}-few-shot/results.md").read_text()
        (after_eight,) = re.findall(
            r"^\| posterior \| chosen \|.* ([\d.]+) \([\d.]+\) \|[^|]*\|$", stored, re.M
        )
        assert f"{after_eight} % on {title}" in README
    observed = read_json(FOLDER.parent / "observed_sets.json")["figures"]
    alone, after = observed["lucid"]["alone"], observed["held_out"]["lucid"]["100"]
    assert f"off by {alone['error_percent'][0]:.0f} %" in README
    assert f"not yet seen are off by {after['error_percent'][0]} %" in README
