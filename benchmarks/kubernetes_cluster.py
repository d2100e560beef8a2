"""A real Kubernetes control plane on one machine, without kubelets: etcd, kube-apiserver and kube-scheduler as
child processes.

Nodes are objects with NVIDIA's labels and capacities. Nobody runs the pods that are bound to them.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import string
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.processes import free_port, output, start

DEPLOY = Path(__file__).parents[1] / "deploy" / "kubernetes"
TOOLS = ("etcd", "kube-apiserver", "kube-scheduler", "kubectl", "nginx", "openssl")
# Users by token; the last column is the group.
USERS = ("admin,admin,1,system:masters", "scheduler,system:kube-scheduler,2,")


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """A node as the API server shows it.

    Attributes:
        product: value of the label `nvidia.com/gpu.product`.
        capacity: extended resources.
        labels: further labels.
    """

    name: str
    product: str
    capacity: dict[str, int]
    labels: dict[str, str] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        labels = {"nvidia.com/gpu.product": self.product, **self.labels}
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        amounts |= {name: str(number) for name, number in self.capacity.items()}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }


def missing() -> list[str]:
    """Whatever is missing to run Kubernetes; empty if nothing is."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def start_kubernetes(folder: Path, stack: ExitStack, nodes: list[KubernetesNode]) -> str:
    """Start etcd and the API server, to be ended by `stack`, set `KUBECONFIG`, add the nodes, return the version."""
    clients, peers, port = free_port(), free_port(), free_port()
    here = f"http://127.0.0.1:{clients}"
    start(stack, "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={here}", f"--advertise-client-urls={here}",
          f"--listen-peer-urls=http://127.0.0.1:{peers}", "--unsafe-no-fsync", log=folder / "etcd.log")  # fmt: skip
    run("openssl", "genrsa", "-out", f"{folder}/accounts.key", "2048")
    (folder / "tokens.csv").write_text("\n".join(USERS) + "\n")
    start(stack, "kube-apiserver", f"--etcd-servers={here}", f"--secure-port={port}", "--bind-address=127.0.0.1",
          f"--cert-dir={folder}/certificates", f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
          f"--service-account-key-file={folder}/accounts.key", f"--service-account-signing-key-file={folder}/accounts.key",
          "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
          # There is no controller that creates service accounts, or that takes the taint of a new node off.
          "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", log=folder / "api-server.log")  # fmt: skip
    for user in USERS:
        _write_config(folder, port, user.partition(",")[0])
    os.environ["KUBECONFIG"] = str(folder / "admin.config")
    deadline = time.monotonic() + 180
    while kubectl("get", "--raw", "/readyz", check=False) != "ok":
        if time.monotonic() > deadline:
            raise RuntimeError("the API server did not start")
        time.sleep(1)
    for node in nodes:
        apply(node.manifest())
        status = json.dumps({"status": node.manifest()["status"]})
        kubectl("patch", "node", node.name, "--subresource=status", "--type=merge", "-p", status)
    return output("kube-apiserver", "--version").removeprefix("Kubernetes ")


def start_proxy(folder: Path, stack: ExitStack, service: str, token: str) -> str:
    """Start nginx with the configuration of `deploy/kubernetes/proxy.yaml`, and return its address.

    Writes `ca.crt`, and `tls.crt` and `tls.key` of a client, for the scheduler.
    """
    port = free_port()
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=authority",
        "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.crt")  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("tls", "server"):
        run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{folder}/{name}.key",
            "-out", f"{folder}/{name}.csr")  # fmt: skip
        run("openssl", "x509", "-req", "-days", "1", "-in", f"{folder}/{name}.csr", "-CA", f"{folder}/ca.crt", "-CAkey",
            f"{folder}/ca.key", "-CAcreateserial", "-out", f"{folder}/{name}.crt", "-extfile", f"{folder}/names")  # fmt: skip
    documents = list(yaml.safe_load_all((DEPLOY / "proxy.yaml").read_text()))
    (template,) = next(d for d in documents if d["kind"] == "ConfigMap")["data"].values()
    text = string.Template(template).safe_substitute(COTENANT_TOKEN=token)
    for old, new in (
        ("/etc/nginx/tls/tls", f"{folder}/server"),
        ("/etc/nginx/tls/", f"{folder}/"),
        ("listen 8443", f"listen 127.0.0.1:{port}"),
        ("http://cotenant.cotenant.svc", service),
    ):
        assert old in text, old
        text = text.replace(old, new)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; events {{}}\n"
        f"http {{ access_log {folder}/access.log; client_body_temp_path {folder}/body; {text} }}\n"
    )
    start(stack, "nginx", "-c", f"{folder}/nginx.conf", "-p", str(folder))
    url = f"https://127.0.0.1:{port}"
    context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
    context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    deadline = time.monotonic() + 30
    while True:
        try:
            # Only the extender's routes are passed on.
            assert httpx.get(f"{url}/v1/cluster", verify=context, trust_env=False).status_code == 404
            return url
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def start_scheduler(folder: Path, stack: ExitStack, proxy: str, version: str) -> None:
    """Start kube-scheduler with `deploy/kubernetes/scheduler-config.yaml`, as the user of the built-in role."""
    # What the file tells its reader to add to the role.
    role = json.loads(kubectl("get", "clusterrole", "system:kube-scheduler", "-o", "json"))
    config = yaml.safe_load((DEPLOY / "scheduler-config.yaml").read_text())
    lease = config["leaderElection"]["resourceName"]
    for rule in role["rules"]:
        if "leases" in rule["resources"] and "resourceNames" in rule:
            rule["resourceNames"].append(lease)
    apply(role)
    if tuple(map(int, version.removeprefix("v").split(".")[:2])) < (1, 25):
        config["apiVersion"] = "kubescheduler.config.k8s.io/v1beta1"  # the same fields
    config["clientConnection"] = {"kubeconfig": str(folder / "scheduler.config")}
    (extender,) = config["extenders"]
    path = extender["urlPrefix"].removeprefix("https://").partition("/")[2]
    extender["urlPrefix"] = f"{proxy}/{path}"
    extender["tlsConfig"] = {
        key: str(folder / Path(file).name) for key, file in extender["tlsConfig"].items()
    }
    (folder / "scheduler.yaml").write_text(yaml.safe_dump(config))
    start(stack, "kube-scheduler", f"--config={folder}/scheduler.yaml", f"--secure-port={free_port()}", "--port=0",
          f"--cert-dir={folder}/scheduler-certificates", f"--authentication-kubeconfig={folder}/admin.config",
          f"--authorization-kubeconfig={folder}/admin.config", log=folder / "scheduler.log")  # fmt: skip


def kubectl(*words: str, check: bool = True, given: str | None = None) -> str:
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, input=given)
    if check and done.returncode:
        raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def apply(manifest: dict[str, Any]) -> None:
    kubectl("apply", "--validate=false", "-f", "-", given=json.dumps(manifest))


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _write_config(folder: Path, port: int, token: str) -> None:
    # The server signs its own certificate.
    authority = str(folder / "certificates" / "apiserver.crt")
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": authority}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": token, "user": {"token": token}}],
        "contexts": [{"name": token, "context": {"cluster": "one", "user": token}}],
        "current-context": token,
    }
    (folder / f"{token}.config").write_text(yaml.safe_dump(config))
