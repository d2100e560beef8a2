"""SJF-BCO on the paper's mix of 160 jobs: schedulers ranked, better lists, gap to the optimum, online.

python -m benchmarks.rings [--seeds 10] [--parts order lists variants gap online]
"""

from __future__ import annotations

import functools
import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import benchmark_parser, run_benchmark
from benchmarks.record import RESULTS, record_part
from scheduling.ring.baselines import first_fit, list_scheduling, random_fit
from scheduling.ring.engine import Execution, RingSchedule
from scheduling.ring.exact import exact
from scheduling.ring.fabric import Fabric
from scheduling.ring.model import RingCluster, RingJob
from scheduling.ring.online import OnlineConfig, RingArrival, run_online
from scheduling.ring.pick import estimate_s
from scheduling.ring.search import PICKS, PRIORITIES, best_list, by_priority, local_search, lower_bound_s
from scheduling.ring.sjf_bco import SjfBcoConfig, sjf_bco

Scheduler = Callable[..., RingSchedule]

MIX = {1: 80, 2: 14, 4: 26, 8: 30, 16: 8, 32: 2}  # GPUs: jobs, as in the paper
PAPER: dict[str, Scheduler] = {
    "SJF-BCO": sjf_bco,
    "SJF-BCO, listing": functools.partial(sjf_bco, config=SjfBcoConfig(packing=False)),
    "list scheduling": list_scheduling,
    "first fit": first_fit,
    "random": random_fit,
}
IDLE: dict[str, Scheduler] = {
    "list scheduling, idle GPUs": functools.partial(list_scheduling, idle=True),
    "first fit, idle GPUs": functools.partial(first_fit, idle=True),
    "random, idle GPUs": functools.partial(random_fit, idle=True),
}
BETTER: dict[str, Scheduler] = {
    "longest first": by_priority,
    "largest work first": functools.partial(by_priority, priority="largest-work"),
    "best of 12 lists": best_list,
    "local search, 100 trials": functools.partial(local_search, trials=100),
}
PARTS = ["order", "lists", "variants", "gap", "online"]
QUEUED_ORDER = ("SJF-BCO", "list scheduling", "first fit", "random")
MEDIUM = (0.1, 0.4)  # share of a step that a job alone spends in the exchange
LISTS = {name: scheduler for name, scheduler in BETTER.items() if not name.startswith("local")}
ONLINE: dict[str, OnlineConfig] = {
    "FCFS, spread": OnlineConfig("arrival", "spread", "none"),
    "FCFS, packed": OnlineConfig("arrival", "pack", "none"),
    "FCFS, packed, EASY backfill": OnlineConfig("arrival", "pack", "reserve"),
    "FCFS, whole or wait, EASY backfill": OnlineConfig("arrival", "whole-or-wait", "reserve"),
    "smallest gang, packed (SJF-BCO's order)": OnlineConfig("narrowest", "pack", "none"),
    "least work, packed, any backfill": OnlineConfig("least-work", "pack", "any"),
    "least work, whole or wait, any backfill": OnlineConfig("least-work", "whole-or-wait", "any"),
    "least work, packed, any, admit if cheaper": OnlineConfig(
        "least-work", "pack", "any", "cheaper-than-waiting"
    ),
}


def paper_jobs(seed: int, exchange_share: tuple[float, float]) -> list[RingJob]:
    """160 jobs in random order: F in [1000, 6000] iterations, tau in [0.01, 0.05] s when split and alone.

    A share of tau in the given range is the exchange (between servers; single-GPU jobs exchange nothing).
    """
    source = random.Random(seed)
    jobs = []
    for gpus, count in MIX.items():
        for _ in range(count):
            tau_s = source.uniform(0.01, 0.05)
            share = source.uniform(*exchange_share) if gpus > 1 else 0.0
            volume = 2 * (gpus - 1) / gpus
            size = share * tau_s * 1250 / volume if gpus > 1 else 0.0
            jobs.append((gpus, size, tau_s * (1 - share), source.randint(1000, 6000)))
    source.shuffle(jobs)
    return [RingJob(f"job{n}", g, m, 0.0, 1, c, f) for n, (g, m, c, f) in enumerate(jobs)]


def paper_cluster(seed: int, servers: int) -> RingCluster:
    """Servers of 4, 8, 16 or 32 GPUs on 10 GbE (sizes in MB)."""
    source = random.Random(10_000 + seed)
    return RingCluster(
        1250, 50_000, 20_000, 0.2, 1.0, 0.0005, tuple(source.choice([4, 8, 16, 32]) for _ in range(servers))
    )


def compare(
    schedulers: dict[str, Scheduler],
    servers: int,
    seeds: int,
    share: tuple[float, float],
    execution: Execution,
) -> dict[str, dict[str, Any]]:
    """Makespan, mean and 99th percentile completion time per scheduler over the seeds, and relative to the
    lower bound."""
    import numpy as np

    rows: dict[str, dict[str, list[float]]] = {
        name: {
            "makespan_s": [],
            "mean_completion_s": [],
            "p99_completion_s": [],
            "over_bound": [],
            "took_s": [],
        }
        for name in schedulers
    }
    for seed in range(seeds):
        cluster, jobs = paper_cluster(seed, servers), paper_jobs(seed, share)
        bound_s = lower_bound_s(cluster, jobs, execution)
        for name, scheduler in schedulers.items():
            began = time.perf_counter()
            schedule = scheduler(cluster, jobs, execution)
            row = rows[name]
            row["took_s"].append(time.perf_counter() - began)
            row["makespan_s"].append(schedule.makespan_s)
            row["mean_completion_s"].append(schedule.mean_completion_s)
            row["p99_completion_s"].append(float(np.percentile(list(schedule.completion_s().values()), 99)))
            row["over_bound"].append(schedule.makespan_s / bound_s)
    return {
        name: {key: statistics.fmean(values) for key, values in row.items()}
        | {
            "sd_makespan_s": statistics.stdev(row["makespan_s"]) if seeds > 1 else 0.0,
            "makespans_s": row["makespan_s"],
        }
        for name, row in rows.items()
    }


def print_table(title: str, rows: dict[str, dict[str, Any]]) -> None:
    print(f"\n{title}")
    print(f"{'':42} makespan s   sd   mean compl. s   p99 s   / bound   time s")
    for name, row in rows.items():
        print(
            f"{name:42} {row['makespan_s']:10.0f} {row['sd_makespan_s']:4.0f} {row['mean_completion_s']:15.0f}"
            f" {row['p99_completion_s']:7.0f} {row['over_bound']:9.2f} {row['took_s']:8.2f}"
        )


def ordered(rows: dict[str, dict[str, Any]], names: Sequence[str]) -> list[int]:
    """For each scheduler but the last, the number of seeds with a shorter makespan than the next one's."""
    return [
        sum(a < b for a, b in zip(rows[first]["makespans_s"], rows[second]["makespans_s"], strict=True))
        for first, second in itertools.pairwise(names)
    ]


def gaps(instances: int, time_limit_s: float) -> dict[str, Any]:
    """Makespan relative to the optimum on small instances in slot time."""
    schedulers = PAPER | IDLE | {"longest first": by_priority, "best of 12 lists": best_list}
    schedulers["local search, 100 trials"] = BETTER["local search, 100 trials"]
    ratios: dict[str, list[float]] = {name: [] for name in schedulers}
    solved, took = 0, []
    execution = Execution(slot_s=10.0)
    for seed in range(instances):
        source = random.Random(seed)
        cluster = RingCluster(
            1250, 50_000, 20_000, 0.2, 1.0, 0.0005, source.choice([(2, 2), (2, 4), (2, 2, 4)])
        )
        jobs = [
            RingJob(
                f"job{n}",
                source.choice([1, 2, 2, 3, 4]),
                source.uniform(10, 120),
                0.0,
                1,
                source.uniform(0.05, 0.2),
                source.randint(100, 400),
            )
            for n in range(source.choice([4, 5, 6]))
        ]
        schedules = {name: scheduler(cluster, jobs, execution) for name, scheduler in schedulers.items()}
        incumbent = min(schedules.values(), key=lambda schedule: schedule.makespan_s)
        began = time.perf_counter()
        best = exact(cluster, jobs, execution, incumbent, time_limit_s=time_limit_s)
        took.append(time.perf_counter() - began)
        if not best.optimal:
            continue
        solved += 1
        for name, schedule in schedules.items():
            ratios[name].append(schedule.makespan_s / best.schedule.makespan_s)
    print(
        f"\nGap to the optimum: {solved} of {instances} small instances solved, {statistics.fmean(took):.1f} s each"
    )
    rows = {}
    for name, values in ratios.items():
        rows[name] = {
            "mean_gap_percent": 100 * (statistics.fmean(values) - 1),
            "max_gap_percent": 100 * (max(values) - 1),
            "optimal": sum(value < 1 + 1e-9 for value in values),
        }
        print(
            f"{name:42} mean {rows[name]['mean_gap_percent']:6.1f} %   max {rows[name]['max_gap_percent']:6.1f} %"
            f"   optimal in {rows[name]['optimal']}"
        )
    return {"instances": instances, "solved": solved, "mean_solve_s": statistics.fmean(took), "rows": rows}


def online(seeds: int, share: tuple[float, float]) -> dict[str, dict[str, float]]:
    """The paper's mix with random arrivals, twice as fast as 15 servers could serve it without contention."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in ONLINE}
    for seed in range(seeds):
        cluster, jobs = paper_cluster(seed, 15), paper_jobs(seed, share)
        source = random.Random(seed)
        span_s = sum(estimate_s(cluster, job) * job.gpus for job in jobs) / sum(cluster.servers) / 2
        arrivals = [RingArrival(job, source.uniform(0, span_s)) for job in jobs]
        for name, config in ONLINE.items():
            rows[name].append(run_online(cluster, arrivals, config).summary())
    mean = {
        name: {key: statistics.fmean(row[key] for row in many) for key in many[0]}
        for name, many in rows.items()
    }
    print(f"\nOnline, 15 servers, {seeds} seeds")
    for name, row in mean.items():
        print(
            f"{name:42} mean JCT {row['mean_jct_s']:5.0f} s  p99 {row['p99_jct_s']:5.0f} s"
            f"  queue {row['mean_queue_s']:5.0f} s  makespan {row['makespan_s']:5.0f} s"
        )
    return mean


def plot(tables: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Makespan with standard deviation by servers, one line per scheduler."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.5, 4.2), layout="constrained")
    names = [*PAPER, "local search, 100 trials"]
    for name in names:
        points = [(int(key), table[name]) for key, table in tables.items() if name in table]
        axes.errorbar(
            [servers for servers, _ in points],
            [row["makespan_s"] for _, row in points],
            yerr=[row["sd_makespan_s"] for _, row in points],
            marker="o",
            capsize=3,
            label=name,
        )
    axes.set(xlabel="servers", ylabel="makespan (s)", yscale="log", xticks=[int(key) for key in tables])
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_formatter("{x:.0f}")
    axes.tick_params(axis="y", which="minor", labelsize=7)
    axes.set_title("160 ring-all-reduce jobs, mean and deviation over the seeds", fontsize=10)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.grid(alpha=0.3, which="both")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    print(f"written: {path.name}")


def order(seeds: int, shared: dict[str, Any]) -> None:
    """The paper's comparison at 10, 15 and 20 servers."""
    tables = {}
    for servers in (10, 15, 20):
        table = compare(PAPER | IDLE | BETTER, servers, seeds, MEDIUM, Execution())
        tables[str(servers)] = table
        print_table(
            f"{servers} servers, exchange 10 to 40 % of a step, {seeds} seeds, continuous time", table
        )
        for names in (QUEUED_ORDER, ("SJF-BCO", *IDLE)):
            print(f"  {' < '.join(names)}: in {ordered(table, names)} of {seeds} seeds, pair by pair")
    shared["continuous"] = tables
    shared["order"] = {key: ordered(table, QUEUED_ORDER) for key, table in tables.items()}
    plot(tables, RESULTS / "rings.svg")


def lists(seeds: int, shared: dict[str, Any]) -> None:
    """Every list rule on 15 servers: order of waiting jobs, and whether a gang waits to stay on one
    server."""
    rules: dict[str, Scheduler] = {
        f"{priority}, {pick}": functools.partial(by_priority, priority=priority, pick=pick)
        for priority in PRIORITIES
        for pick in PICKS
    }
    shared["lists"] = compare(rules, 15, seeds, MEDIUM, Execution())
    print_table(f"15 servers, list rules, {seeds} seeds", shared["lists"])


def variants(seeds: int, shared: dict[str, Any]) -> None:
    """15 servers with less exchange, in slots, and on other fabrics."""
    for key, share, execution, title in (
        ("light", (0.02, 0.15), Execution(), "exchange 2 to 15 % of a step"),
        ("slots", MEDIUM, Execution(slot_s=1.0), "slots of 1 s"),
        ("fat_tree_4_to_1", MEDIUM, Execution(Fabric(5, 4.0)), "leaves of 5 servers, 4:1 oversubscribed"),
        ("rails_8", MEDIUM, Execution(Fabric(rails=8)), "8 rails per server"),
    ):
        shared[key] = compare(PAPER | LISTS, 15, seeds, share, execution)
        print_table(f"15 servers, {title}, {seeds} seeds", shared[key])


def main() -> None:
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--seeds", type=int, default=10, help="drawn cases (default: %(default)s)")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="only these; the others keep their figures"
    )
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    if "order" in options.parts:
        order(options.seeds, figures)
    if "lists" in options.parts:
        lists(options.seeds, figures)
    if "variants" in options.parts:
        variants(options.seeds, figures)
    if "gap" in options.parts:
        figures["gap"] = gaps(2 * options.seeds, 30.0)
    if "online" in options.parts:
        figures["online"] = online(options.seeds, MEDIUM)
    record_part("rings", figures)


if __name__ == "__main__":
    run_benchmark(__file__, main)
