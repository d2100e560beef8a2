"""Clusters that come with the project."""

from __future__ import annotations

from pathlib import Path

from profiling.errors import InputError
from scheduling.core.snapshot import ClusterSnapshot


def load_cluster(name: str | Path) -> ClusterSnapshot:
    """A cluster by its file, or by the name of one that comes with the project (`philly-2000`, `small-mixed`, ...).

    Raises:
        InputError: there is no such file or name, or it is not a cluster.
    """
    bundled = Path(__file__).parent / f"{Path(name).name.removesuffix('.yaml')}.yaml"
    if Path(name).exists() or not bundled.exists():
        if not Path(name).exists():
            known = ", ".join(sorted(p.stem for p in Path(__file__).parent.glob("*.yaml")))
            raise InputError(f"no cluster {name}", expected=f"a cluster.yaml, or one of {known}")
        return ClusterSnapshot.load(name)
    return ClusterSnapshot.load(bundled)
