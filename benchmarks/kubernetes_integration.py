"""The Kubernetes integration on a real API server and scheduler: the extender behind a TLS proxy, the controller, the
service. There are no kubelets: nodes are objects with NVIDIA's labels, and bound pods are marked as running here.

Checks where pods go without the controller, with it, with mistakes in their annotations, on MIG slices, and without the
service. Needs etcd, kube-apiserver, kube-scheduler, kubectl, nginx and openssl in PATH; without them, it says so and
exits successfully.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.kubernetes_cluster import (
    DEPLOY,
    KubernetesNode,
    apply,
    kubectl,
    missing,
    start_kubernetes,
    start_proxy,
    start_scheduler,
)
from benchmarks.processes import end, output, start, start_service
from benchmarks.record import record

SHARED = {
    "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
NODES = [
    KubernetesNode("node-a", "Tesla-K80-SHARED", {"nvidia.com/gpu": 4}, SHARED),
    KubernetesNode("node-b", "Tesla-V100-SXM2-16GB-SHARED", {"nvidia.com/gpu": 4}, SHARED),
    KubernetesNode("node-c", "Tesla-V100-SXM2-16GB-SHARED", {"nvidia.com/gpu": 4}, SHARED),
    KubernetesNode("cut", "NVIDIA-A100-SXM4-40GB", {"nvidia.com/mig-3g.20gb": 1, "nvidia.com/mig-1g.5gb": 2}),
]
JOBS = (
    {"workload": "resnet50-imagenet", "batch-size": "64", "iterations": "20000"},
    {"workload": "lstm-wikitext2", "batch-size": "20", "iterations": "20000"},
    {"workload": "resnet18-cifar", "batch-size": "64", "iterations": "20000"},
    {"workload": "resnet50-imagenet", "batch-size": "64", "iterations": "20000"},
)
PERIOD_S = 1.0


def main() -> None:
    benchmark_parser(__file__, __doc__).parse_args()
    absent = missing()
    if absent:
        print("skipped: needs " + ", ".join(absent))
        return
    with tempfile.TemporaryDirectory(prefix="cotenant-kubernetes-") as folder, ExitStack() as stack:
        figures = look(Path(folder), stack)
    print(json.dumps(figures, indent=1))
    record("kubernetes_integration", figures)


def look(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """All daemons end with `stack`."""
    version = start_kubernetes(folder, stack, NODES)
    figures: dict[str, Any] = {"kubernetes": version, "nodes": {node.name: node.capacity for node in NODES}}
    # With the namespace first. kubectl cannot validate against the schema of a server that is much older.
    for manifest in sorted(DEPLOY.glob("*.yaml"), key=lambda path: path.stem != "cotenant"):
        if manifest.stem != "scheduler-config":
            kubectl("apply", "--validate=false", "-f", str(manifest))
    figures["manifests"] = "applied: " + kubectl(
        "get",
        "deployments,services,configmaps,networkpolicies,pods",
        "-A",
        "-o",
        "jsonpath={.items[*].metadata.name}",
    )
    kubectl("delete", "pods", "--all", "--wait=false")

    database = f"sqlite:///{folder}/store.db"
    os.environ["COTENANT_DATABASE"] = database
    token = {
        scope: output(
            sys.executable, "-m", "serving.cli.main", "serve", "token", "add", scope, "--scope", scope
        )
        for scope in ("place", "admin")
    }
    url, service = start_service(folder, stack, "--auth", "on")
    headers = {"Authorization": f"Bearer {token['admin']}"}
    # The service captures the models, so that a busy machine does not delay the first answers.
    for model in {job["workload"] for job in JOBS}:
        body = {"device": "v100", "jobs": [model]}
        httpx.post(
            f"{url}/v1/predict", json=body, headers=headers, timeout=120, trust_env=False
        ).raise_for_status()
    start_scheduler(folder, stack, start_proxy(folder, stack, url, token["place"]), version)

    pods = Pods()
    figures["no annotations"] = pods.start({})
    figures["before the service knows the nodes"] = pods.start(JOBS[0])
    pods.end()
    os.environ["COTENANT_TOKEN"] = token["admin"]
    start(stack, sys.executable, "-m", "serving.cli.main", "controller", "kubernetes", "--service", url,
          "--period", str(PERIOD_S))  # fmt: skip
    wait_for(lambda: gpus(url, headers) == 6, "the controller's upload")
    figures["with the controller"] = [pods.start(job) for job in JOBS]
    wait_for(lambda: tenants(url, headers) == len(JOBS), "the running pods as tenants")
    figures["tenants of the service"] = held(url, headers)
    figures["a mistake"] = pods.refused({"workload": "resnet18-cifar", "batchsize": "64"})
    figures["too large for every node"] = pods.refused({"workload": "llama-3-8b"})
    figures["a slice"] = pods.start(JOBS[2], "nvidia.com/mig-3g.20gb")
    pods.end()
    wait_for(lambda: tenants(url, headers) == 0, "the ended pods")
    end(service)
    figures["service down"] = pods.start(JOBS[0])
    return figures


class Pods:
    """Starts pods, and marks them as running, as no kubelet does."""

    def __init__(self) -> None:
        self._number = 0

    def start(self, annotations: dict[str, str], resource: str = "nvidia.com/gpu") -> dict[str, Any]:
        """Create a pod; returns its node, and how long it took to be bound."""
        name, started = self._create(annotations, resource), time.monotonic()
        wait_for(lambda: bool(self._node(name)), f"{name} to be bound")
        seconds = round(time.monotonic() - started, 1)
        phase = json.dumps({"status": {"phase": "Running"}})
        kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", phase)
        # Until the controller has seen it, the next pod is placed as if this one was not there.
        time.sleep(2 * PERIOD_S)
        return {
            "annotations": annotations,
            "resource": resource,
            "node": self._node(name),
            "bound_after_s": seconds,
        }

    def refused(self, annotations: dict[str, str]) -> dict[str, Any]:
        """Create a pod that cannot be scheduled; returns the message that its owner sees."""
        name = self._create(annotations, "nvidia.com/gpu")

        def message() -> str:
            status = json.loads(kubectl("get", "pod", name, "-o", "json"))["status"]
            return " ".join(c.get("message", "") for c in status.get("conditions", ()))

        wait_for(lambda: bool(message()), f"{name} to be refused")
        said = message()
        assert not self._node(name)
        kubectl("delete", "pod", name, "--force", "--grace-period=0")
        return {"annotations": annotations, "message": said}

    def end(self) -> None:
        kubectl("delete", "pods", "--all", "--force", "--grace-period=0")

    def _create(self, annotations: dict[str, str], resource: str) -> str:
        self._number += 1
        pod = yaml.safe_load((DEPLOY / "pod.yaml").read_text())
        pod["metadata"]["name"] = f"train-{self._number}"
        pod["metadata"]["annotations"] = {f"cotenant.dev/{key}": value for key, value in annotations.items()}
        pod["spec"]["containers"][0]["resources"]["limits"] = {resource: "1"}
        apply(pod)
        return str(pod["metadata"]["name"])

    def _node(self, name: str) -> str:
        return kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName}")


def held(url: str, headers: dict[str, str]) -> dict[str, list[str]]:
    """The tenants' jobs by node."""
    body = httpx.get(f"{url}/v1/cluster", headers=headers, trust_env=False).json()["cluster"]
    return {
        node["name"]: [t["job"] for gpu in node["gpus"] for t in gpu.get("tenants", ())]
        for node in body["nodes"]
    }


def tenants(url: str, headers: dict[str, str]) -> int:
    return sum(map(len, held(url, headers).values()))


def gpus(url: str, headers: dict[str, str]) -> int:
    body = httpx.get(f"{url}/v1/cluster", headers=headers, trust_env=False).json()["cluster"]
    return sum(len(node["gpus"]) for node in body["nodes"])


def wait_for(done: Any, what: str, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.3)


if __name__ == "__main__":
    run_benchmark(__file__, main)
