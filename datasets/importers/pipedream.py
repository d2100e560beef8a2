"""Per-layer times from PipeDream's profiles: `MODEL/graph.txt` or `MODEL.graph.txt`.

Narayanan et al., SOSP 2019; MIT. The files state neither GPU type nor batch size, so the rows do not either.
"""

from __future__ import annotations

import re
from pathlib import Path

from datasets.importers.base import Import, lacks_files
from profiling.capture.pipedream_profile import read_profile
from profiling.errors import InputError

NAMES = {"gnmt": "gnmt-wmt16", "gnmt_large": "gnmt-large-wmt16"}


def read(folder: Path) -> Import:
    """Read every profile below `folder`.

    Raises:
        InputError: there are none, or one is malformed; with the line.
    """
    result = Import("pipedream")
    files = sorted(
        {
            *folder.glob("profiler/*/profiles/*/graph.txt"),
            *folder.glob("*/graph.txt"),
            *folder.glob("*.graph.txt"),
        }
    )
    if not files:
        raise lacks_files(folder, "profiler/*/profiles/MODEL/graph.txt, MODEL/graph.txt or MODEL.graph.txt")
    seen: set[str] = set()
    for path in files:
        name = path.parent.name if path.name == "graph.txt" else path.name.removesuffix(".graph.txt")
        if name in seen:
            raise InputError(f"{path}: model is given twice", expected="one profile per model", got=name)
        seen.add(name)
        profile = read_profile(path)
        inputs: dict[str, list[str]] = {}
        for source, target in profile.edges:
            inputs.setdefault(target, []).append(source)
        for node in profile.nodes:
            result.read += 1
            result.add(
                "graphs",
                "pipedream",
                architecture=NAMES.get(name, re.sub(r"[^a-z0-9]", "", name.lower()) + "-imagenet"),
                device="unknown",
                node=node.id,
                operator=node.description,
                inputs=" ".join(inputs.get(node.id, [])) or None,
                forward_time_s=node.forward_s,
                backward_time_s=node.backward_s,
                activation_bytes=node.activation_bytes,
                parameter_bytes=node.parameter_bytes,
            )
    result.notes.append("neither GPU type nor batch size is stated upstream")
    return result
