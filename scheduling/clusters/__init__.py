"""Built-in clusters."""

from __future__ import annotations

from pathlib import Path

from profiling.errors import InputError
from profiling.names import one_of
from scheduling.core.snapshot import ClusterSnapshot

_FOLDER = Path(__file__).parent


def cluster_names() -> list[str]:
    """Names of the built-in clusters."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def cluster_text(name: str) -> str:
    """The YAML of a built-in cluster."""
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def load_cluster(name: str | Path) -> ClusterSnapshot:
    """A cluster by file, or by the name of a built-in one (`philly-2000`, `small-mixed`, ...).

    Raises:
        InputError: no such file or name, or not a cluster.
    """
    if Path(name).exists():
        return ClusterSnapshot.load(name)
    bundled = Path(name).name.removesuffix(".yaml")
    if bundled not in cluster_names():
        raise InputError(
            f"no cluster {name}",
            expected="a cluster.yaml, or " + one_of(bundled, cluster_names()),
            hint="`cotenant cluster init` writes a sample",
        )
    return ClusterSnapshot.load(_FOLDER / f"{bundled}.yaml")
