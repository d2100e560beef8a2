"""Learning curves as Markdown pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def of_sets(result: dict[str, Any]) -> str:
    """Markdown page of a report on observed sets: MAPE % (R2), and the coverage of 90 % intervals."""
    about = (
        "MAPE % (R2) of the co-located / solo throughput after K observed sets per device; "
        f"{result['sets']} sets, {result['points']} points, seeds {', '.join(map(str, result['seeds']))}. "
        "For all learners, sets are chosen by the probe rule of `process`."
    )
    return learning_page(result, about, "sets", lambda f: f"{f['mape_percent']:.1f} ({f['r2']:.2f})")


def of_jobs(result: dict[str, Any]) -> str:
    """Markdown page of a report on solo step times: MAPE %, and the coverage of 90 % intervals."""
    about = (
        f"MAPE % of the step time after K measured points of the job; {result['points']} points, "
        f"seeds {', '.join(map(str, result['seeds']))}. The cost model is the shipped one, which was fitted "
        f"to some of these campaigns."
    )
    return learning_page(result, about, "asked", lambda f: f"{f['mape_percent']:.1f}")


def learning_page(
    result: dict[str, Any], about: str, chosen_by: str, cell: Callable[[dict[str, float]], str]
) -> str:
    """A Markdown page of figures by number of observations.

    Args:
        result: the report.
        about: text after the report's own description.
        chosen_by: title of the second column: how observations or queries are chosen.
        cell: formats the figures of one learner after K observations.
    """
    counts = [str(count) for count in result["counts"]]
    lines = [
        f"# {result['protocol']}",
        "",
        f"{result['about'][0].upper()}{result['about'][1:]}. {about}",
        "",
        f"`{result['command']}`, {result['date']}, {result['machine'].get('processor', 'unknown processor')}",
        "",
        f"| learner | {chosen_by} | {' | '.join(f'K = {c}' for c in counts)} |",
        "|" + "---|" * (len(counts) + 2),
    ]

    def row(title: str, by: str, text: Callable[[dict[str, float]], str], figures: dict[str, Any]) -> str:
        cells = [text(figures[c]) if c in figures else "-" for c in counts]
        return f"| {title} | {by} | {' | '.join(cells)} |"

    for name, groups in result["learners"].items():
        lines += [row(name, by, cell, figures) for by, figures in groups.items()]
    for name, groups in result["learners"].items():
        for by, figures in groups.items():
            if all("coverage_90" in f for f in figures.values()):
                lines.append(
                    row(f"{name}, coverage", by, lambda f: f"{100 * f['coverage_90']:.0f} %", figures)
                )
    return "\n".join(lines) + "\n"
