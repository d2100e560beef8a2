"""Training progress on stderr: stage, share done, time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

_EVERY_S = 30.0


class StageClock:
    """Steps done over all stages, and the time left at the pace so far.

    Args:
        expected: steps of the whole run; 0 if unknown.
    """

    def __init__(self, expected: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.expected, self.clock = expected, clock
        self.done: dict[str, int] = {}
        self.skipped = 0
        self.began_s: float | None = None

    def note(self, phase: str, step: int) -> None:
        """Record that `step` (from 1) of `phase` is done."""
        if self.began_s is None:
            self.began_s = self.clock()
        if phase not in self.done:
            self.skipped += step - 1  # done before a kill, so says nothing about the pace
        self.done[phase] = step

    @property
    def fraction(self) -> float | None:
        """Share of the whole run, 0 to 1; None if unknown."""
        return min(sum(self.done.values()) / self.expected, 1.0) if self.expected else None

    @property
    def left_s(self) -> float | None:
        """Seconds left; None if not known yet."""
        paced = sum(self.done.values()) - self.skipped
        if not self.expected or self.began_s is None or paced < 2:
            return None
        left = max(self.expected - sum(self.done.values()), 0)
        return (self.clock() - self.began_s) / paced * left


@contextmanager
def reporting(title: str, expected: int = 0) -> Iterator[Callable[[str, int, int, float], None]]:
    """Follow a `predictor.config.LossCallback`: bars on a terminal, else a line per stage and every half minute.

    Args:
        expected: steps of all stages together; 0 if unknown.
    """
    from rich.console import Console

    clock, validation, validated = StageClock(expected), "", ""
    said: dict[str, float] = {}

    def line(phase: str, step: int, steps: int, number: str) -> None:
        now = time.monotonic()
        if step == steps or phase not in said or now - said[phase] >= _EVERY_S:
            said[phase] = now
            typer.echo(f"{title}: {phase}, {step} of {steps}{number}{validation}{_left(clock)}", err=True)

    def report(phase: str, step: int, steps: int, loss: float) -> None:
        nonlocal validation, validated
        part, _, inner = phase.rpartition(": ")
        if inner.startswith("validation"):
            validation, validated = f", MAE on held-out architectures {loss:.3f}", part
            return
        if part != validated:
            validation = ""  # another fit's
        number = ""
        if not phase.startswith("compare: "):  # a contender, which has no loss
            clock.note(phase, step)
            number = f", loss {loss:.4f}"
        show(phase, step, steps, number)

    show = line
    if not Console(stderr=True).is_terminal:
        yield report
        return
    from serving.cli.output import progress

    with progress() as bars:
        whole = bars.add_task(title, total=expected or None)
        stage = bars.add_task("", total=None, visible=False)

        def draw(phase: str, step: int, steps: int, number: str) -> None:
            bars.update(whole, completed=sum(clock.done.values()), description=title + validation)
            bars.update(stage, description=f"  {phase}{number}", completed=step, total=steps, visible=True)

        show = draw
        yield report


@contextmanager
def resumable() -> Iterator[None]:
    """Say what to do next where Ctrl-C or SIGTERM stops the block."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        typer.echo("stopped; repeat the command to resume", err=True)
        raise


def _left(clock: StageClock) -> str:
    if clock.fraction is None or clock.left_s is None:
        return ""
    if clock.fraction == 1.0:
        return " (the last fits, scoring, writing and registering follow)"
    left: Any = f"{clock.left_s / 60:.0f} min" if clock.left_s >= 90 else f"{clock.left_s:.0f} s"
    return f" ({100 * clock.fraction:.0f} % done, about {left} left)"
