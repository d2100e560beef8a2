"""The service's OpenAPI document, which clients are generated from.

python clients/openapi.py clients/python/openapi.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def document() -> dict[str, Any]:
    """What a service with default settings answers at `/openapi.json`."""
    from serving.app import create_app
    from serving.config import ServiceConfig

    with TemporaryDirectory() as folder:
        document = create_app(ServiceConfig(database_url=f"sqlite:///{folder}/store.db")).openapi()
    # Their order is that of a set otherwise, another one in each process.
    schemas = document["components"]["schemas"]
    document["components"]["schemas"] = {name: schemas[name] for name in sorted(schemas)}
    return document


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    Path(sys.argv[1]).write_text(json.dumps(document(), indent=1, ensure_ascii=False) + "\n")
