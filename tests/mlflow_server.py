"""A stand-in for an MLflow server, which answers each endpoint with a fixed body."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RUN = {"run_id": "r", "run_uuid": "r", "run_name": "n", "experiment_id": "1", "lifecycle_stage": "active"}
# Enough for a run that logs nothing.
RUNS = {
    "experiments/get-by-name": {
        "experiment": {"experiment_id": "1", "name": "trial", "lifecycle_stage": "active"}
    },
    "runs/create": {"run": {"info": RUN, "data": {}}},
    "runs/get": {"run": {"info": RUN, "data": {}}},
    "runs/update": {"run_info": RUN},
}


@contextmanager
def mlflow_server(answers: Mapping[str, Any], status: int = 401) -> Iterator[tuple[str, list[str]]]:
    """The address of the server, `HOST:PORT`, and the list of paths asked for.

    Args:
        answers: end of the path to JSON body.
        status: of the answer to any other path but `/health`, whose body is plain text.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = next((json.dumps(b) for end, b in answers.items() if path.endswith(end)), None)
            self.send_response(status if body is None and path != "/health" else 200)
            sent = (body or "You are not authenticated.").encode()
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(sent)

        do_HEAD = do_POST = do_PATCH = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
