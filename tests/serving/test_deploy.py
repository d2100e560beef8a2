"""Manifests against the published schemas of Kubernetes; there is no API server here to apply them to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from serving.extender.pods import read_job

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
