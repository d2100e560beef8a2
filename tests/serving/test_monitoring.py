"""Alerts and the Grafana dashboard against the service's metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from predictor.types import Quantity
from serving.metrics import Metrics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
PANELS: list[dict[str, Any]] = json.loads((DEPLOY / "grafana" / "cotenant.json").read_text())["panels"]
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def metrics_of(queries: list[str]) -> set[str]:
    """The metrics that PromQL queries name, without the suffixes of their series."""
    names = {name for query in queries for name in re.findall(r"cotenant_[a-z_]+", query)}
    return {re.sub(r"_(total|sum|count|bucket)$", "", name) for name in names}


ALERTED = metrics_of([rule["expr"] for rule in RULES])
SHOWN = metrics_of([target["expr"] for panel in PANELS for target in panel["targets"]])


def test_alerts_and_dashboard_use_existing_metrics() -> None:
    known = {metric.name for metric in Metrics().registry.collect()}
    assert known >= ALERTED | SHOWN


def test_every_metric_with_an_alert_has_a_panel() -> None:
    assert ALERTED <= SHOWN


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in PANELS)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24  # columns of Grafana's grid
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


@needs_promtool
@pytest.mark.parametrize("unit_tests", [False, True], ids=["lint", "unit tests"])
def test_alerts(unit_tests: bool) -> None:
    if unit_tests:
        promtool("test", "rules", str(Path(__file__).with_name("alerts.yaml")))
    else:
        promtool("check", "rules", "--lint=all", "--lint-fatal", str(DEPLOY / "prometheus" / "alerts.yaml"))


@needs_promtool
def test_metrics_are_named_and_described_as_prometheus_asks() -> None:
    metrics = Metrics()
    metrics.serve_version("a")
    metrics.observe("v100", "vgg11-cifar", "model", 0.1, Quantity(0.1, 0.05, 0.2))
    promtool("check", "metrics", given=metrics.render().decode())


def promtool(*words: str, given: str = "") -> None:
    done = subprocess.run(["promtool", *words], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
