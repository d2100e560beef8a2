"""Settings for all tests: one thread per process, and no time limits that a busy machine would exceed."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.forking import share_the_fork_server
from tests.once import FOLDER

# Before torch and numpy are imported: two workers with two spinning threads each take several times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# With so many live objects (torch, the tests), the default threshold of 700 would cost a fifth of pytest's
# collection time.
gc.set_threshold(50_000, 20, 50)
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the objects of collection, so that no garbage collection scans them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_configure() -> None:
    """Create a folder that a run's workers share, in their parent, and one fork server per worker."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="cotenant-tests-")
    share_the_fork_server()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def no_full_collection() -> Iterator[None]:
    """Skip the full collection after a model is loaded: with every library imported it takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serving.collector.settle", lambda: None)
        yield
