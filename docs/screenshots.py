"""Screenshots of the docs, taken in headless Chromium (Debian: chromium, chromium-driver).

python docs/screenshots.py dashboard
python docs/screenshots.py mlflow sqlite:///mlflow.db       # after two runs of the same experiment
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
PORT = 8765
TALLEST = 2400  # pixels of a picture
BASE = f"http://127.0.0.1:{PORT}"


@contextmanager
def chromium(width: int, height: int) -> Iterator[Any]:
    """A headless window of that many pixels."""
    from selenium import webdriver

    with TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run",
                     "hide-scrollbars", f"window-size={width},{height}", f"user-data-dir={profile}"):  # fmt: skip
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(
            options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
        )
        driver.set_page_load_timeout(300)
        driver.set_script_timeout(300)
        try:
            yield driver
        finally:
            driver.quit()


@contextmanager
def server(*command: str, ready: str) -> Iterator[None]:
    """A server in a process of its own, up once `ready` answers."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 600
        while True:
            try:
                urllib.request.urlopen(ready, timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} did not start") from None
                time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait(60)


def window(driver: Any, width: int, height: int) -> None:
    """A viewport of that many pixels, also one narrower than a window of Chromium can be."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )


def keep(driver: Any, name: str, whole: bool = True) -> None:
    """The page, or the window alone, as WebP of 300 kB at most."""
    from PIL import Image

    if whole:
        width, height = driver.execute_script("return [innerWidth, document.body.scrollHeight]")
        window(driver, width, min(height, TALLEST))
    picture = Image.open(BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    path = IMAGES / f"{name}.webp"
    picture.save(path, quality=80, method=6)
    assert path.stat().st_size < 300_000, path
    print(path, picture.size, path.stat().st_size)


def colours(driver: Any, scheme: str) -> None:
    """What pages are told that the reader prefers, `light` or `dark`."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def dashboard() -> None:
    """Overview (light, dark, filtered, on a telephone), a job's page and a what-if, with the predictor that ships."""
    import httpx

    gpus: list[dict[str, Any]] = [{"device": "v100", "id": str(i)} for i in range(4)]
    for gpu, pair in ((0, ["transformer-multi30k", "neumf-ml1m"]), (1, ["resnet50-imagenet"] * 2)):
        gpus[gpu]["tenants"] = [
            {"job": job, "iterations_left": 50_000, "job_id": f"earlier-{gpu}{place}"}
            for place, job in enumerate(pair)
        ]
    nodes = [{"name": "node-a", "gpus": gpus}, {"name": "node-b", "gpus": [{"device": "p100", "id": "0"}]}]
    jobs = [
        "resnet18-cifar:batch_size=64",
        "lstm-wikitext2:batch_size=20",
        "transformer-multi30k",
        "dcgan-64",
    ]
    with TemporaryDirectory() as folder:
        command = (sys.executable, "-m", "serving.cli.main", "serve", "--port", str(PORT), "--workers", "1",
                   "--database", f"sqlite:///{folder}/store.db")  # fmt: skip
        with (
            server(*command, ready=f"{BASE}/v1/health/ready"),
            httpx.Client(base_url=BASE, timeout=300) as client,
        ):
            client.put("/v1/cluster", json={"nodes": nodes}).raise_for_status()
            placed = [
                client.post(
                    "/v1/placements", json={"job": job, "job_id": f"job-{i}", "iterations": 20_000 * (i + 1)}
                )
                for i, job in enumerate(jobs)
            ]
            shown = [answer.raise_for_status().json() for answer in placed]
            last = [entry for entry in shown if entry["node"]][-1]["id"]
            question = "/what-if?device=v100&device=p100&sharing=time-slice&sharing=mps&jobs=resnet18-cifar%0Alstm-wikitext2"
            pages = {
                "light": "/",
                "dark": "/",
                "filtered": "/?state=shared",
                "job": f"/jobs/{last}",
                "what_if": question,
            }
            with chromium(1200, 900) as driver:
                for name, path in pages.items():
                    window(driver, 1200, 900)
                    colours(driver, "dark" if name == "dark" else "light")
                    driver.get(BASE + path)
                    keep(driver, f"dashboard_{name}")
                for name, path in (("phone", "/"), ("phone_what_if", question)):
                    window(driver, 390, 844)
                    driver.get(BASE + path)
                    keep(driver, f"dashboard_{name}")


def settle(driver: Any, text: str) -> None:
    """Wait until the page says `text` and has drawn the same for five seconds, five minutes at most."""
    deadline, before, since = time.monotonic() + 300, "", time.monotonic()
    while time.monotonic() < deadline:
        now = driver.page_source
        if now != before or text not in now:
            before, since = now, time.monotonic()
        if time.monotonic() - since >= 5:
            return
        time.sleep(1)
    raise SystemExit(f"{driver.current_url} did not show {text!r}")


def mlflow(store: str) -> None:
    """The compare page of the two latest runs of the newest experiment that has two, and one loss of both."""
    import json

    from mlflow import MlflowClient

    client = MlflowClient(store)
    for experiment in client.search_experiments(order_by=["last_update_time DESC"]):
        runs = client.search_runs([experiment.experiment_id], "status = 'FINISHED'", max_results=2)
        if len(runs) == 2:
            break
    else:
        raise SystemExit("no experiment has two runs")
    ids = json.dumps([run.info.run_id for run in runs])
    of = f"runs={ids}&experiments={json.dumps([experiment.experiment_id])}"
    loss = "loss network 1"
    pages = {
        "mlflow_compare": f"/#/compare-runs?{of}",
        "mlflow_loss": f'/#/metric?{of}&metric="{loss}"&plot_metric_keys=["{loss}"]',
    }
    command = (sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--port", str(PORT),
               "--workers", "1")  # fmt: skip
    close = """[...document.querySelectorAll('button')].filter(
        b => /close/i.test(b.getAttribute('aria-label') || '')).forEach(b => b.click())"""
    with server(*command, ready=f"{BASE}/health"), chromium(1440, 1000) as driver:
        for name, path in pages.items():
            driver.get("about:blank")  # a change of the fragment alone loads nothing
            driver.get(BASE + path)
            settle(driver, "network 1")
            driver.execute_script(close)  # the assistant, which covers a quarter of the window
            settle(driver, "network 1")
            keep(driver, name, whole=False)


if __name__ == "__main__":
    {"dashboard": dashboard, "mlflow": mlflow}[sys.argv[1]](*sys.argv[2:])
