"""Manifests against the published schemas of Kubernetes; there is no API server here to apply them to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from serving.extender.pods import read_job
from serving.metrics import Metrics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MANIFESTS = [
    (path.name, document)
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


@pytest.mark.parametrize(
    ("name", "document"),
    [m for m in MANIFESTS if m[1]["kind"] != "KubeSchedulerConfiguration"],
    ids=lambda value: value if isinstance(value, str) else value["kind"],
)
def test_manifests(name: str, document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.31", strict=True)


def test_scheduler_configuration() -> None:
    (config,) = (d for _, d in MANIFESTS if d["kind"] == "KubeSchedulerConfiguration")
    assert config["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    (extender,) = config["extenders"]
    # The fields of upstream's `Extender` type in kubescheduler.config.k8s.io/v1.
    known = {
        "urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb", "weight", "bindVerb", "enableHTTPS", "tlsConfig",
        "httpTimeout", "nodeCacheCapable", "managedResources", "ignorable",
    }  # fmt: skip
    assert set(extender) <= known
    assert extender["ignorable"] is True
    assert extender["nodeCacheCapable"] is True
    assert (extender["filterVerb"], extender["prioritizeVerb"]) == ("filter", "prioritize")


def test_the_sample_pod_is_understood() -> None:
    (pod,) = (d for n, d in MANIFESTS if n == "pod.yaml")
    job = read_job(pod)
    assert job is not None
    assert str(job.workload) == "resnet18-cifar:batch_size=64,precision=amp"
    assert (job.iterations, job.max_slowdown, job.gpus) == (10000.0, 1.5, 1)


def test_helm_values_follow_their_schema() -> None:
    chart = DEPLOY / "helm" / "cotenant"
    schema = json.loads((chart / "values.schema.json").read_text())
    values = yaml.safe_load((chart / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values | {"replica": 2}, schema)
    # Every value that a template reads is one that there is.
    for template in (chart / "templates").glob("*.yaml"):
        for path in re.findall(r"\.Values\.([A-Za-z.]+)", template.read_text()):
            found: Any = values
            for key in path.split("."):
                assert key in found, f"{template.name} reads {path}"
                found = found[key]


def test_alerts_and_dashboard_read_metrics_that_there_are() -> None:
    known = {
        f"cotenant_{name}"
        for metric in Metrics().registry.collect()
        for name in [metric.name.removeprefix("cotenant_")]
    }
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
    board = json.loads((DEPLOY / "grafana" / "cotenant.json").read_text())
    queries = [rule["expr"] for rule in rules] + [
        t["expr"] for panel in board["panels"] for t in panel["targets"]
    ]
    for query in queries:
        for name in re.findall(r"cotenant_[a-z_]+", query):
            assert re.sub(r"_(total|sum|count|bucket)$", "", name) in known, name


def test_compose_and_image() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services["cotenant"]["read_only"] is True
    assert "psycopg" in services["cotenant"]["environment"]["COTENANT_DATABASE"]
    image = (DEPLOY.parent / "Dockerfile").read_text()
    assert "USER 10001" in image
    assert "HEALTHCHECK" in image
