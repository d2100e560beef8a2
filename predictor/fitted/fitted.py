"""The result of fitting a predictor, and its provenance."""

from __future__ import annotations

from dataclasses import dataclass, field

from models.colocation_network import SetTensors
from predictor.fitted.coverage import Coverage
from predictor.fitted.device_memory import HeadCalibration
from predictor.fitted.domain import Domain
from predictor.fitted.intervals import Intervals
from predictor.fitted.model import CotenantModel


@dataclass(frozen=True, slots=True)
class Manifest:
    """Provenance of a model: the sets that it learned from, and their sources.

    Attributes:
        set_ids: all sets that it or an ancestor learned from.
        sources, licences, architectures: of these.
        largest_set: members of the largest.
        ancestors: versions that it was fine-tuned from, the oldest first.
        added_set_ids: what the last fine-tuning added.
        coverage: devices, sharing modes and options of these sets.
        partners: set and position of the members of these sets whose ratio was not known.
        added_before: what each fine-tuning before the last added, the oldest first.
    """

    set_ids: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    licences: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    largest_set: int = 2
    ancestors: tuple[str, ...] = ()
    added_set_ids: tuple[str, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    partners: tuple[tuple[str, int], ...] = ()
    added_before: tuple[tuple[str, ...], ...] = ()


@dataclass
class Fitted:
    """Everything that `fit` learns and a checkpoint stores."""

    model: CotenantModel
    heads: HeadCalibration = field(default_factory=HeadCalibration)
    intervals: Intervals = field(default_factory=Intervals)
    domain: Domain = field(default_factory=Domain)
    manifest: Manifest = field(default_factory=Manifest)
    replay: SetTensors | None = None
