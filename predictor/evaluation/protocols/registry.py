"""Registry of the contenders in protocols.

A contender is a factory of objects with

    fit(train: Bundle, seed: int) -> Any
    predict(test: Bundle) -> [n] float64, one for each of `test.rows`
    predict_interval(test: Bundle) -> ([n] lower, [n] upper) of a 90 % interval          (optional)

`datasets.bundle.Bundle` documents `train` and `test`; `bundle.target` is what to predict. For every fold, a
new object is made, fitted on `train` and queried once; in `test`, everything measured together with the
target is empty. A prediction of NaN means "no answer"; unless the contender is registered as `partial`, it is
then reported as not applicable, rather than scored on the rest.

To take part, write a module with

    from predictor.evaluation.protocols.registry import Contender, register

    register(Contender("e-ggat", lambda: MyPredictor(), version="1", seconds_per_fold=90))

and name it in `MODULES`. A module is imported when a protocol is listed or run, not before; keep heavy
imports inside the factory. The contender itself should cache what is expensive and the same for every fold
(encoded graphs).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from models.baselines.contract import FoldPredictor
from profiling.errors import ConflictError, UnknownNameError
from profiling.names import one_of

# Targets of every predictor of sets.
OF_SETS = ("throughput_ratio", "set_memory_bytes", "set_utilization_ratio", "solo_step_time_s")
MODULES = (
    "predictor.evaluation.protocols.builtin",
    "predictor.evaluation.protocols.published",
    "predictor.evaluation.protocols.networks",
    "predictor.evaluation.protocols.process",
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A registered predictor.

    Attributes:
        name: as in `--predictors` and in the tables.
        make: makes a new, unfitted object.
        version: raise it if results would change: stored folds of another version are run again. May be a
            function, for a version read from a checkpoint.
        targets: what it can predict.
        protocols: the only protocols in which it takes part; None: all with one of its targets that do not
            select contenders by name.
        uses_solo: whether it needs solo profiles; if so, it does not take part where they are withheld.
        partial: whether it may leave up to half of the rows unanswered (if their features are unknown) and be
            scored on the others.
        pretrained: whether it is a finished checkpoint. Such a contender takes part in zero-shot protocols
            only.
        seconds_per_fold: rough cost on two cores, stated before a run.
    """

    name: str
    make: Callable[[], FoldPredictor]
    version: str | Callable[[], str] = "1"
    targets: tuple[str, ...] = OF_SETS
    protocols: frozenset[str] | None = None
    uses_solo: bool = False
    partial: bool = False
    pretrained: bool = False
    seconds_per_fold: float = 1.0

    @property
    def current_version(self) -> str:
        """The version as text; if it is a function, it is called now."""
        return self.version if isinstance(self.version, str) else self.version()


_CONTENDERS: dict[str, Contender] = {}


def register(contender: Contender) -> None:
    """Add a contender.

    Raises:
        ConflictError: another module's contender has the same name. A module may register its own again.
    """
    known = _CONTENDERS.get(contender.name)
    if known is not None and _module_of(known.make) != _module_of(contender.make):
        raise ConflictError(
            f"a predictor named {contender.name!r} is already registered", expected="a name of its own"
        )
    _CONTENDERS[contender.name] = contender


def _module_of(make: Callable[[], FoldPredictor]) -> str:
    # A partial's own module is always functools.
    return (make.func if isinstance(make, partial) else make).__module__


def contenders(names: Iterable[str] | None = None) -> list[Contender]:
    """All registered contenders, or those called `names` in that order.

    Raises:
        UnknownNameError: a name is not registered.
    """
    for module in MODULES:
        importlib.import_module(module)
    if names is None:
        return list(_CONTENDERS.values())
    chosen = list(names)
    for name in chosen:
        if name not in _CONTENDERS:
            raise UnknownNameError("no such predictor", expected=one_of(name, _CONTENDERS), got=name)
    return [_CONTENDERS[name] for name in chosen]
