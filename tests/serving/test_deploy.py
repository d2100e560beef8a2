"""Manifests against Kubernetes' published schemas, because there is no API server to apply them to."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from serving.config import ServiceConfig
from serving.extender.pods import read_job

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
MANIFESTS = [
    (path.name, document)
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


def the_service() -> dict[str, Any]:
    """The Deployment of the service."""
    deployments = {d["metadata"]["name"]: d for _, d in MANIFESTS if d["kind"] == "Deployment"}
    return deployments["cotenant"]


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
    assert extender["httpTimeout"] == "10s"  # time for a capture
    assert extender["nodeCacheCapable"] is True
    assert (extender["filterVerb"], extender["prioritizeVerb"]) == ("filter", "prioritize")
    # With the default name it would wait for the cluster's own scheduler to give up its lease.
    election = config["leaderElection"]
    assert election["leaderElect"] is True
    assert election["resourceName"] == config["profiles"][0]["schedulerName"]
    # The service speaks HTTP: HTTPS is the proxy's, under its own name.
    services = {d["metadata"]["name"]: d["spec"]["ports"] for _, d in MANIFESTS if d["kind"] == "Service"}
    assert [port["port"] for port in services["cotenant"]] == [80]
    proxy = extender["urlPrefix"].removeprefix("https://").partition(".")[0]
    assert [port["port"] for port in services[proxy]] == [443]
    client = {"podSelector": {"matchLabels": {"cotenant.dev/client": "true"}}}
    (policy,) = (d for _, d in MANIFESTS if d["kind"] == "NetworkPolicy")
    assert client in policy["spec"]["ingress"][0]["from"]
    assert "- podSelector" in (DEPLOY / "helm" / "cotenant" / "templates" / "networkpolicy.yaml").read_text()


def test_the_chart_probes_as_the_manifest_does() -> None:
    """Readiness responds within a second, the default time limit of a probe."""
    deployment = the_service()
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    chart = (DEPLOY / "helm" / "cotenant" / "templates" / "deployment.yaml").read_text()
    for name in ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle"):
        (block,) = re.findall(rf"^ {{10}}{name}:\n((?: {{12}}.*\n)+)", chart, re.MULTILINE)
        assert yaml.safe_load(block) == container[name], name


def test_the_charts_controller_is_the_manifests() -> None:
    """It may do as much, and runs as confined."""
    of_kind = {d["kind"]: d for name, d in MANIFESTS if name == "controller.yaml"}
    pod = of_kind["Deployment"]["spec"]["template"]["spec"]
    chart = (DEPLOY / "helm" / "cotenant" / "templates" / "controller.yaml").read_text()
    for indent, name, given in (
        (0, "rules", of_kind["ClusterRole"]["rules"]),
        (6, "securityContext", pod["securityContext"]),
        (10, "securityContext", pod["containers"][0]["securityContext"]),
        (10, "resources", pod["containers"][0]["resources"]),
    ):
        (block,) = re.findall(rf"^ {{{indent}}}{name}:\n((?: {{{indent + 2}}}.*\n)+)", chart, re.MULTILINE)
        assert yaml.safe_load(block) == given, name


def test_a_pod_that_ends_is_dropped_before_it_stops_listening() -> None:
    """And what it still answers ends in time: endpoints are removed while the pod gets its SIGTERM."""
    deployment = the_service()
    pod = deployment["spec"]["template"]["spec"]
    command, seconds = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + ServiceConfig().drain_s
    chart = (DEPLOY / "helm" / "cotenant" / "templates" / "deployment.yaml").read_text()
    assert f"terminationGracePeriodSeconds: {pod['terminationGracePeriodSeconds']}\n" in chart


def test_scraping_needs_a_token() -> None:
    """`/metrics` requires a token, which scraping by annotations does not send."""
    deployment = the_service()
    assert "annotations" not in deployment["spec"]["template"]["metadata"]


def test_the_sample_pod_is_parsed() -> None:
    (pod,) = (d for n, d in MANIFESTS if n == "pod.yaml")
    job = read_job(pod)
    assert job is not None
    assert str(job.workload) == "resnet18-cifar:batch_size=64,precision=amp"
    assert (job.iterations, job.max_slowdown, job.gpus) == (10000.0, 1.5, 1)


def test_the_sample_pod_on_a_slice_is_parsed() -> None:
    (pod,) = (d for n, d in MANIFESTS if n == "pod-mig.yaml")
    job = read_job(pod)
    assert job is not None
    assert (job.gpus, job.mig_profile) == (1, "3g.20gb")


def test_helm_values_follow_their_schema() -> None:
    chart = DEPLOY / "helm" / "cotenant"
    schema = json.loads((chart / "values.schema.json").read_text())
    values = yaml.safe_load((chart / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values | {"replica": 2}, schema)
    for name in ("image", "database", "persistence", "bootstrapToken", "networkPolicy", "serviceMonitor"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(values | {name: values[name] | {"enable": True}}, schema)
    more = {
        "extraEnv": [{"name": "COTENANT_POLICY", "value": "exclusive"},
                     {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "serviceMonitor": values["serviceMonitor"] | {"labels": {"release": "prometheus"}},
    }  # fmt: skip
    jsonschema.validate(values | more, schema)
    for name, wrong in {
        "extraEnv": {"COTENANT_POLICY": "exclusive"}, "imagePullSecrets": ["registry"], "nodeSelector": {"a": 1},
        "tolerations": {}, "serviceMonitor": {"labels": ["prometheus"]},
    }.items():  # fmt: skip
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(values | {name: wrong}, schema)
    # What Helm adds where the chart is a dependency of another one.
    jsonschema.validate(values | {"global": {}}, schema)
    # Every value that a template reads is one that there is, and the other way round.
    assert set(values) == {
        name
        for template in (chart / "templates").glob("*.yaml")
        for name in re.findall(r"\.Values\.([A-Za-z]+)", template.read_text())
    }
    for template in (chart / "templates").glob("*.yaml"):
        for path in re.findall(r"\.Values\.([A-Za-z.]+)", template.read_text()):
            value: Any = values
            for key in path.split("."):
                assert key in value, f"{template.name} reads {path}"
                value = value[key]


SHARED = ["database.secretName=cotenant-database", "replicas=3"]
MONITORED = [
    "serviceMonitor.enabled=true",
    "mlflowTrackingUri=http://mlflow:5000",
    "persistence.storageClassName=fast",
    "serviceMonitor.labels.release=prometheus",
]
PRIVATE = [
    "extraEnv[0].name=COTENANT_POLICY", "extraEnv[0].value=exclusive", "imagePullSecrets[0].name=registry",
    "nodeSelector.disk=ssd", "tolerations[0].key=cpu", "tolerations[0].operator=Exists",
]  # fmt: skip
CONTROLLED = ["controller.enabled=true", "controller.devices[0]=big=a100-80gb"]


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
@pytest.mark.parametrize(
    "values", [[], SHARED, MONITORED, PRIVATE, CONTROLLED, ["networkPolicy.enabled=false"]], ids=" ".join
)
def test_rendered_chart(values: list[str]) -> None:
    """Helm's output is valid against Kubernetes' schemas, also if the release's name is a boolean in YAML."""
    rendered = helm("template", "on", DEPLOY / "helm" / "cotenant", *(f"--set={value}" for value in values))
    assert rendered.returncode == 0, rendered.stderr
    documents = [document for document in yaml.safe_load_all(rendered.stdout) if document]
    kinds = [document["kind"] for document in documents]
    for document in documents:
        if document["kind"] != "ServiceMonitor":  # of Prometheus Operator; Kubernetes' schemas lack it
            kubernetes_validate.validate(document, "1.31", strict=True)
    assert kinds.count("Deployment") == (2 if values is CONTROLLED else 1)
    (deployment,) = (d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == "on")
    (service,) = (d for d in documents if d["kind"] == "Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert deployment["spec"]["replicas"] == (3 if values is SHARED else 1)
    pod = deployment["spec"]["template"]["spec"]
    environment = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
    assert (environment.get("COTENANT_POLICY") == "exclusive") == (values is PRIVATE)
    for name, given in {
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
    }.items():
        assert pod.get(name) == (given if values is PRIVATE else None)
    assert ("PersistentVolumeClaim" in kinds) == (values is not SHARED)
    assert ("ServiceMonitor" in kinds) == (values is MONITORED)
    assert ("NetworkPolicy" in kinds) == (values != ["networkPolicy.enabled=false"])


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
@pytest.mark.parametrize("value", ["replicas=3", "replica=1", "workers=none"])
def test_chart_refuses_invalid_values(value: str) -> None:
    """Several replicas on SQLite, unknown names, values of the wrong type."""
    assert helm("template", "one", DEPLOY / "helm" / "cotenant", f"--set={value}").returncode != 0


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *map(str, words)], capture_output=True, text=True)


def test_compose_and_image() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services["cotenant"]["read_only"] is True
    variables = services["cotenant"]["environment"]
    assert "psycopg" in variables["COTENANT_DATABASE"]
    # An address would need `@` or `%` in a password escaped; see test_postgres.py.
    assert "PASSWORD" not in variables["COTENANT_DATABASE"]
    assert variables["PGPASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    image = (DEPLOY.parent / "Dockerfile").read_text()
    assert "USER 10001" in image
    assert "HEALTHCHECK" in image


def test_compose_publishes_mlflow_on_the_host_alone() -> None:
    """`cotenant train` there registers models, under a name that MLflow accepts."""
    mlflow = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["mlflow"]
    assert mlflow["ports"] == ["127.0.0.1:5000:5000"]
    assert "127.0.0.1:5000" in mlflow["command"][mlflow["command"].index("--allowed-hosts") + 1].split(",")


def test_manifests_set_the_database_by_its_variable() -> None:
    """A command-line option would silently override it."""
    image = (DEPLOY.parent / "Dockerfile").read_text()
    assert re.search(r"^ENV COTENANT_DATABASE=sqlite:////data/", image, re.MULTILINE)
    deployment = the_service()
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert "COTENANT_DATABASE" in {variable["name"] for variable in container["env"]}
    chart = (DEPLOY / "helm" / "cotenant" / "templates" / "deployment.yaml").read_text()
    compose = (DEPLOY / "compose.yaml").read_text()
    assert "--database" not in f"{image} {container['args']} {chart} {compose}"


def test_third_party_images_are_pinned_by_digest() -> None:
    pinned = r"[a-z/]+:[A-Za-z0-9.-]+@sha256:[0-9a-f]{64}"
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert "build" in service or re.fullmatch(pinned, service["image"]), name
    image = (DEPLOY.parent / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", image, re.MULTILINE)
    assert re.fullmatch(pinned, base)
    stages = {"build", "base"}
    for start in re.findall(r"^FROM (\S+)", image, re.MULTILINE):
        assert start in stages | {"${PYTHON_IMAGE}"}, start


def test_memory_limits_cover_workers_and_their_processes() -> None:
    """For each worker: itself, one capture and one parsed upload at their limits."""
    config, gib = ServiceConfig(), 2**30
    worker = 2.0 * gib + config.capture_processes * config.capture_memory_bytes + config.parse_memory_bytes
    chart = yaml.safe_load((DEPLOY / "helm" / "cotenant" / "values.yaml").read_text())
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    deployment = the_service()
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    for limit in (
        chart["resources"]["limits"]["memory"], container["resources"]["limits"]["memory"],
        compose["services"]["cotenant"]["mem_limit"].upper() + "i",
    ):  # fmt: skip
        assert int(limit.removesuffix("Gi")) * gib >= 2 * worker


def test_network_policy_admits_monitoring() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"][0]
    assert scrape["authorization"]["credentials_file"]
    policy = (DEPLOY / "helm" / "cotenant" / "templates" / "networkpolicy.yaml").read_text()
    assert "monitoringNamespace" in policy
    mlflow = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["mlflow"]["command"]
    assert "mlflow:5000" in mlflow[mlflow.index("--allowed-hosts") + 1]


def test_the_lock_names_every_dependency_with_hashes() -> None:
    root = DEPLOY.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = {"runtime.txt": project["dependencies"] + project["optional-dependencies"]["postgres"],
             "dev.txt": project["dependencies"] + project["optional-dependencies"]["dev"]}  # fmt: skip
    for file, wanted in names.items():
        text = (root / "requirements" / file).read_text()
        locked = {
            name.lower() for name in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==", text, re.MULTILINE)
        }
        for requirement in wanted:
            name = re.split(r"[\[<>=;~! ]", requirement, maxsplit=1)[0].lower()
            assert name == "torch" or name in locked, f"{name}: run make lock"
        assert text.count("--hash=sha256:") >= len(locked)
    runtime = (root / "requirements" / "runtime.txt").read_text()
    for server_part in ("mlflow==", "flask==", "docker==", "gunicorn=="):
        assert f"\n{server_part}" not in runtime
