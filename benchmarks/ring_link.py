"""Does a shared link cost what equation 8 says? Real all-reduce rings (gloo) over rate-limited links.

Every "server" is a network namespace with one interface (veth) shaped by `tc tbf`; servers are on one bridge,
or on two bridges with a shaped trunk between them. Jobs are `torch.distributed` processes in those
namespaces; a training step is a sleep (the GPU computes) and an all-reduce. b_e and xi2 are fitted from one
job alone, alpha from two jobs on a link; everything else is predicted from these three numbers before it is
measured.

Needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN) and iproute2: `apt-get install iproute2`.

    python -m benchmarks.ring_link [--seconds 5] [--repeats 2] [--network reno:100 bbr:100 reno:5]

A network is TCP's congestion control and the depth of the links' queues in ms. The first is measured in full,
the others only as far as alpha needs: two, three and four jobs on one link.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.command_line import add_name, benchmark_parser, record_name, run_benchmark
from benchmarks.record import RESULTS, record
from scheduling.ring.duty import duty_cycle_timings
from scheduling.ring.fabric import SERVER_UPLINKS, Fabric
from scheduling.ring.fit import LinkSample, fit_link
from scheduling.ring.model import RingCluster, RingJob, ring_timings

RATE_MBIT = 200
TRUNK = Fabric(servers_per_leaf=2, oversubscription=2.0)


@dataclass(frozen=True)
class Case:
    """jobs: placement (server → workers) and gradient in MB of each job; compute_s: sleep in each step."""

    name: str
    jobs: tuple[tuple[dict[int, int], float], ...]
    compute_s: float = 0.0
    fabric: Fabric = SERVER_UPLINKS
    fitted: bool = False


PAIR = {0: 1, 1: 1}
CASES = (
    Case("1 job, 2 workers, 1 MB", ((PAIR, 1.0),), fitted=True),
    Case("1 job, 2 workers, 4 MB", ((PAIR, 4.0),), fitted=True),
    Case("2 jobs share both servers, 4 MB", ((PAIR, 4.0),) * 2, fitted=True),
    Case("3 jobs share both servers, 4 MB", ((PAIR, 4.0),) * 3),
    Case("4 jobs share both servers, 4 MB", ((PAIR, 4.0),) * 4),
    Case("2 jobs share both servers, 1 and 4 MB", ((PAIR, 1.0), (PAIR, 4.0))),
    Case("1 job, 2 + 2 workers, 4 MB", (({0: 2, 1: 2}, 4.0),)),
    Case("2 jobs of 2 + 2 workers, 4 MB", (({0: 2, 1: 2}, 4.0),) * 2),
    Case("1 job over 3 servers, 4 MB", (({0: 1, 1: 1, 2: 1}, 4.0),)),
    Case("chain: 2 jobs share the middle server", (({0: 1, 1: 1}, 4.0), ({1: 1, 2: 1}, 4.0))),
    Case("apart: 2 jobs share no server", (({0: 1, 1: 1}, 4.0), ({2: 1, 3: 1}, 4.0))),
    Case("2 jobs share a trunk (2:1), no server", (({0: 1, 2: 1}, 4.0), ({1: 1, 3: 1}, 4.0)), fabric=TRUNK),
    Case("2 jobs, compute 0.16 s a step", ((PAIR, 4.0),) * 2, compute_s=0.16),
    Case("2 jobs, compute 0.48 s a step", ((PAIR, 4.0),) * 2, compute_s=0.48),
    Case("4 jobs, compute 0.16 s a step", ((PAIR, 4.0),) * 4, compute_s=0.16),
)


def skip_reason() -> str | None:
    """Why this cannot run here, or None."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"needs {tool} (iproute2)"
    try:
        with network(1, SERVER_UPLINKS, "reno:100"):
            return None
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted here: {error.stderr.strip()}"


@contextmanager
def network(servers: int, fabric: Fabric, kind: str) -> Iterator[list[str]]:
    """Create namespaces of `servers` servers with shaped interfaces, yield their names in order, and always
    remove them.

    kind: congestion control, a colon, and queue depth of a link in ms.
    """
    congestion_control, _, queue_ms = kind.partition(":")
    stem = f"cotenant{os.getpid()}"
    switch, names = f"{stem}w", [f"{stem}s{n}" for n in range(servers)]
    made: list[str] = []

    def shape(namespace: str, device: str, mbit: float) -> None:
        call(
            f"tc -n {namespace} qdisc add dev {device} root"
            f" tbf rate {mbit:g}mbit burst 32kb latency {queue_ms}ms"
        )

    def bridge(name: str) -> None:
        call(f"ip -n {switch} link add {name} type bridge")
        call(f"ip -n {switch} link set {name} up")

    try:
        call(f"ip netns add {switch}")
        made.append(switch)
        per_leaf = fabric.servers_per_leaf or servers
        leaves = -(-servers // per_leaf)
        for leaf in range(leaves):
            bridge(f"leaf{leaf}")
        if leaves == 2:
            call(f"ip -n {switch} link add up0 type veth peer name up1")
            for leaf in range(2):
                call(f"ip -n {switch} link set up{leaf} master leaf{leaf} up")
                shape(switch, f"up{leaf}", RATE_MBIT * per_leaf / fabric.oversubscription)
        for n, name in enumerate(names):
            call(f"ip netns add {name}")
            made.append(name)
            call(f"ip link add eth0 netns {name} type veth peer name port{n} netns {switch}")
            call(f"ip -n {name} addr add 10.99.0.{n + 1}/24 dev eth0")
            call(f"ip -n {name} link set lo up")
            call(f"ip -n {name} link set eth0 up")
            call(f"ip -n {switch} link set port{n} master leaf{n // per_leaf} up")
            shape(name, "eth0", RATE_MBIT)
            shape(switch, f"port{n}", RATE_MBIT)
            call(
                f"ip netns exec {name} sh -c 'echo {congestion_control} > /proc/sys/net/ipv4/tcp_congestion_control'"
            )
        yield names
    finally:
        for namespace in made:
            subprocess.run(["ip", "netns", "del", namespace], check=False)


def call(command: str) -> None:
    import shlex

    subprocess.run(shlex.split(command), check=True, capture_output=True, text=True)


def worker(plan: dict[str, Any]) -> None:
    """One worker of one job: runs steps until time is up; rank 0 writes (end, duration) of each."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    folder = Path(plan["folder"])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store{plan['job']}",
        rank=plan["rank"],
        world_size=plan["world"],
        timeout=timedelta(seconds=60),
    )
    gradient = torch.ones(int(plan["megabytes"] * 1e6 / 4))
    more = torch.ones(1)
    dist.all_reduce(gradient)
    (folder / f"ready{plan['job']}-{plan['rank']}").touch()
    while not (folder / "go").exists():
        time.sleep(0.005)
    # Jobs start out of step, as in a cluster.
    time.sleep(0.037 * plan["job"])
    end_s = time.monotonic() + plan["seconds"]
    times = []
    while more.item() > 0:
        began_s = time.monotonic()
        if plan["compute_s"]:
            time.sleep(plan["compute_s"])
        gradient.fill_(1.0)
        # Whether to continue is sent in the gradient, so that no second message is on the wire.
        if plan["rank"] == 0 and began_s > end_s:
            gradient[0] = -1e6
        dist.all_reduce(gradient)
        more[0] = gradient[0]
        times.append((time.monotonic(), time.monotonic() - began_s))
    if plan["rank"] == 0:
        (folder / f"times{plan['job']}.json").write_text(json.dumps(times))
    dist.destroy_process_group()


def measure(case: Case, seconds: float, kind: str) -> list[float]:
    """Mean step time of each job while all jobs run."""
    servers = 4 if case.fabric.servers_per_leaf else 1 + max(max(p) for p, _ in case.jobs)
    with (
        tempfile.TemporaryDirectory() as folder,
        network(servers, case.fabric, kind) as names,
    ):
        processes = []
        try:
            for number, (placement, megabytes) in enumerate(case.jobs):
                ranks = [server for server, workers in sorted(placement.items()) for _ in range(workers)]
                for rank, server in enumerate(ranks):
                    plan = {
                        "folder": folder,
                        "job": number,
                        "rank": rank,
                        "world": len(ranks),
                        "megabytes": megabytes,
                        "compute_s": case.compute_s,
                        "seconds": seconds,
                    }
                    command = ["ip", "netns", "exec", names[server], sys.executable, "-m"]
                    command += ["benchmarks.ring_link", "--worker", json.dumps(plan)]
                    environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
                    processes.append(subprocess.Popen(command, env=environment))
            deadline_s = time.monotonic() + 90
            while len(list(Path(folder).glob("ready*"))) < len(processes):
                if time.monotonic() > deadline_s or any(p.poll() for p in processes):
                    raise RuntimeError(f"{case.name}: workers did not start")
                time.sleep(0.02)
            (Path(folder) / "go").touch()
            for process in processes:
                if process.wait(timeout=seconds + 60):
                    raise RuntimeError(f"{case.name}: a worker failed")
        finally:
            for process in processes:
                process.kill()
                process.wait()
        runs = [json.loads((Path(folder) / f"times{n}.json").read_text()) for n in range(len(case.jobs))]
    # Only steps while all jobs were running: from one second after every job's first step to the first job's
    # end.
    start_s = max(run[0][0] for run in runs) + 1.0
    end_s = min(run[-1][0] for run in runs)
    kept = [[took for at, took in run if at - took >= start_s and at <= end_s] for run in runs]
    return [statistics.fmean(times) for times in kept]


def predict(case: Case, cluster: RingCluster, duty: bool) -> list[float]:
    jobs = {
        str(n): RingJob(str(n), sum(placement.values()), megabytes, 0, 1, case.compute_s, 1)
        for n, (placement, megabytes) in enumerate(case.jobs)
    }
    placements = {str(n): placement for n, (placement, _) in enumerate(case.jobs)}
    model = duty_cycle_timings if duty else ring_timings
    timings = model(cluster, jobs, placements, fabric=case.fabric)
    return [timings[str(n)].iteration_time_s for n in range(len(case.jobs))]


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="seconds per measurement (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=int, default=2, help="repeats of each measurement (default: %(default)s)"
    )
    parser.add_argument(
        "--network",
        nargs="+",
        default=["reno:100", "bbr:100", "reno:5"],
        help="congestion control and milliseconds of queue of each network (default: %(default)s)",
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    add_name(parser)
    options = parser.parse_args()
    stem = record_name(parser, options, "ring_link", "network")
    if options.worker:
        worker(json.loads(options.worker))
        return
    if options.seconds < 2:
        parser.error(
            f"--seconds: the first second of a measurement is left out; at least 2, got {options.seconds:g}"
        )
    if reason := skip_reason():
        print(f"skipped: {reason}")
        return
    networks = {
        kind: study(kind, CASES if n == 0 else CASES[:5], options.seconds, options.repeats)
        for n, kind in enumerate(options.network)
    }
    record(stem, {"rate_mbit": RATE_MBIT, "networks": networks})
    plot(networks[options.network[0]]["rows"], RESULTS / f"{stem}.svg")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Predicted and measured step time: the paper's model, and with duty cycles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 4.4), layout="constrained")
    for label, key, marker, chosen in (
        ("fitted", "predicted_s", "x", [row for row in rows if row["fitted"]]),
        (
            "equations 6 to 8, exchange only",
            "predicted_s",
            "o",
            [row for row in rows if not row["fitted"] and "compute" not in row["case"]],
        ),
        (
            "equations 6 to 8, with compute",
            "predicted_s",
            "^",
            [row for row in rows if "compute" in row["case"]],
        ),
        ("duty cycles, with compute", "duty_cycle_s", "v", [row for row in rows if "compute" in row["case"]]),
    ):
        axes.scatter(
            [row["measured_s"] for row in chosen], [row[key] for row in chosen], marker=marker, label=label
        )
    limit = 1.1 * max(row["predicted_s"] for row in rows)
    axes.plot([0, limit], [0, limit], color="grey", linewidth=0.8)
    axes.set(xlabel="measured step (s)", ylabel="predicted step (s)", xlim=(0, limit), ylim=(0, limit))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def study(kind: str, cases: Sequence[Case], seconds: float, repeats: int) -> dict[str, Any]:
    """Measure `cases` on one network, fit, predict, print."""
    measured: dict[str, list[list[float]]] = {}
    for case in cases:
        measured[case.name] = [measure(case, seconds, kind) for _ in range(repeats)]
        spread = ", ".join(f"{statistics.fmean(run):.4f}" for run in measured[case.name])
        print(f"{case.name}: {spread} s", file=sys.stderr, flush=True)
    fit = fit_link(
        LinkSample(sum(p.values()), megabytes, len(p), len(case.jobs), case.compute_s, took)
        for case in cases
        if case.fitted
        for run in measured[case.name]
        for (p, megabytes), took in zip(case.jobs, run, strict=True)
    )
    cluster = RingCluster(
        # Within a server, bandwidth is no limit for these sizes, and equation 8's C is part of the fitted
        # b_e.
        inter_bandwidth=fit.inter_bandwidth,
        intra_bandwidth=1e6,
        reduce_speed=1e9,
        alpha=fit.alpha,
        xi1=1.0,
        xi2=fit.xi2,
        servers=(8,) * 4,
    )
    rows: list[dict[str, Any]] = []
    for case in cases:
        for n in range(len(case.jobs)):
            took = [run[n] for run in measured[case.name]]
            rows.append(
                {
                    "case": case.name,
                    "job": n,
                    "fitted": case.fitted,
                    "measured_s": statistics.fmean(took),
                    "spread_s": statistics.stdev(took) if len(took) > 1 else 0.0,
                    "predicted_s": predict(case, cluster, duty=False)[n],
                    "duty_cycle_s": predict(case, cluster, duty=True)[n],
                }
            )
    print(
        f"\n{kind} ms, {RATE_MBIT} Mbit/s = {RATE_MBIT / 8:g} MB/s: fitted b_e {fit.inter_bandwidth:.2f} MB/s, "
        f"alpha {fit.alpha:.3f}, xi2 {fit.xi2 * 1e3:.2f} ms"
    )
    print(f"{'case':42} job    measured +-      eq. 6-8   error   duty cycle  error")
    for row in rows:
        error, duty = (100 * (row[key] / row["measured_s"] - 1) for key in ("predicted_s", "duty_cycle_s"))
        print(
            f"{row['case']:42} {row['job']:3}  {row['measured_s']:.4f} {row['spread_s']:.4f} s  {row['predicted_s']:.4f} s"
            f" {error:+5.1f} %  {row['duty_cycle_s']:.4f} s {duty:+5.1f} %{'  (fitted)' if row['fitted'] else ''}"
        )
    held_out = [row for row in rows if not row["fitted"]]
    busy = [row for row in held_out if "compute" not in row["case"]]
    computing = [row for row in held_out if row not in busy]
    summary = {
        f"mape_percent_{name}": 100
        * statistics.fmean(abs(row[key] / row["measured_s"] - 1) for row in chosen)
        for name, chosen, key in (
            ("exchange_only", busy, "predicted_s"),
            ("with_compute", computing, "predicted_s"),
            ("with_compute_duty_cycle", computing, "duty_cycle_s"),
        )
        if chosen
    }
    print(", ".join(f"{name} {value:.1f}" for name, value in summary.items()))
    return {"fit": asdict(fit), "summary": summary, "rows": rows}


if __name__ == "__main__":
    run_benchmark(__file__, main)
