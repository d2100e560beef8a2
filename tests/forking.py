"""One fork server for all tests of a worker, which has imported everything that child processes need."""

from __future__ import annotations

from multiprocessing import forkserver

# Imported by the server, because each of its processes would otherwise spend seconds on them; includes lazy
# imports of training.
MODULES = (
    "profiling.capture",
    "serving.capturing",
    "torch._dynamo",
    "torch.distributed.pipelining",
    "benchmarks.pipeline_runtime",
    "serving.app",
    "serving.store",
    "uvicorn",
    "profiling.zoo",
    "alembic.command",
    "scheduling.placement.place",
    "predictor.training.fit",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "pandera.backends.pandas.register",
    "pandera.strategies.pandas_strategies",
    "tests.serving.killing",
    "tests.predictor.training.killed_training",
)
_set = forkserver.set_forkserver_preload


def share_the_fork_server() -> None:
    """Add `MODULES` to the modules that this process's fork server imports."""

    def preload(names: list[str]) -> None:
        _set(list(dict.fromkeys([*names, *MODULES])))

    forkserver.set_forkserver_preload = preload
