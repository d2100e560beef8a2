"""The end of a service while it has requests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from predictor.types import Prediction
from profiling.workload import ColocationSet
from serving.app import create_app
from serving.config import ServiceConfig
from tests.serving.live import serve
from tests.serving.problems import problem
from tests.serving.table import TablePredictor, TableSource
from tests.waiting import LONG_S, until

SLOW = "vgg11-cifar"


@dataclass(eq=False)
class Endless(TablePredictor):
    """Answers nothing about `SLOW` before `released`."""

    asked: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def predict_many(self, sets: Sequence[ColocationSet]) -> list[Prediction]:
        if any(w.model == SLOW for s in sets for w in s.workloads):
            self.asked.set()
            self.released.wait(LONG_S)
        return super().predict_many(sets)


def test_a_request_that_outlasts_the_drain_is_told_to_come_again(tmp_path: Path) -> None:
    predictor = Endless()
    config = ServiceConfig(database_url=f"sqlite:///{tmp_path}/s.db", log_level="error")
    body = {"device": "v100", "jobs": [SLOW]}
    with ThreadPoolExecutor(1) as pool:
        try:
            with serve(create_app(config, TableSource(predictor)), drain_s=1) as port:
                url = f"http://127.0.0.1:{port}/v1/predict"
                asked = pool.submit(httpx.post, url, json=body, timeout=LONG_S, trust_env=False)
                until(predictor.asked.is_set, "the model is asked")
            answer = asked.result(LONG_S)
        finally:
            predictor.released.set()
    assert "is stopping" in problem(answer, 503)["detail"]
    assert answer.headers["retry-after"]
