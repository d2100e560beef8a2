"""Dashboard and API reference in headless Chromium: keyboard, light and dark, no console messages."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from profiling.workload import SHARING_MODES
from serving.app import create_app
from serving.auth import create_token
from serving.config import ServiceConfig
from serving.store import Store
from tests.serving.live import serve
from tests.serving.table import TableSource

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
AXE = Path(__file__).parents[2] / "build" / "node_modules" / "axe-core" / "axe.min.js"
HERE = "http://127.0.0.1:"
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)",
)

TENANTS = [{"job": "resnet18-cifar", "iterations_left": 1200, "job_id": "t-1"}] * 2
CLUSTER = {
    "nodes": [
        {
            "name": "node-a",
            "gpus": [
                {"device": "v100", "id": "0", "tenants": TENANTS},
                {"device": "v100", "id": "1", "tenants": TENANTS[:1]},
                {"device": "p100", "id": "2"},
                {"device": "p100", "id": "3"},
            ],
        },
        {
            "name": "a" * 200,
            "gpus": [
                {"device": "k80", "id": "b" * 200, "tenants": [TENANTS[0] | {"job_id": "c" * 200}]},
                {"device": "a100:mig=3g", "id": f"{'d' * 190}/3g", "sharing": "mig"},
            ],
        },
    ]
}
# Contrast as WCAG 2 defines it, of all text that is seen against the nearest opaque background.
_CONTRAST = """
const parse = c => c.match(/[\\d.]+/g).map(Number);
const light = c => { const [r, g, b] = parse(c).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b; };
const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if ((parse(c)[3] ?? 1) === 1) return c; } return 'rgb(255, 255, 255)'; };
return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
  const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
  return [(a + .05) / (b + .05), e.tagName + ': ' + e.textContent.trim().slice(0, 40)]; }).sort((x, y) => x[0] - y[0])[0];
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with a cluster, a placement and an observation."""
    store = tmp_path_factory.mktemp("browser") / "store.db"
    with serve(create_app(ServiceConfig(database_url=f"sqlite:///{store}"), TableSource())) as port:
        url = f"http://127.0.0.1:{port}"
        httpx.put(f"{url}/v1/cluster", json=CLUSTER).raise_for_status()
        job = {"job": "lstm-wikitext2", "job_id": "t-2", "iterations": 50}
        httpx.post(f"{url}/v1/placements", json=job).raise_for_status()
        over = httpx.post(f"{url}/v1/placements", json=job | {"job_id": "e" * 200}).raise_for_status().json()
        httpx.post(f"{url}/v1/placements/{over['id']}/end").raise_for_status()
        seen = {"of": {"device": "v100", "jobs": ["resnet18-cifar"]}, "step_time_s": 0.11}
        httpx.post(f"{url}/v1/observations", json={"observations": [seen]}).raise_for_status()
        yield url


class Browser(webdriver.Chrome):  # type: ignore[misc, name-defined]
    def get(self, url: str) -> None:
        super().get(url)
        self.wait_for(url)

    def wait_for(self, part: str) -> None:
        """Wait until a page with `part` in its URL is loaded.

        On a busy machine the driver returns from a navigation before the page's body or style sheet is there.
        """
        state = "return document.readyState === 'complete' && location.href"
        WebDriverWait(self, 60).until(lambda b: part in (b.execute_script(state) or ""), f"{part} not loaded")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Chromium without access to other hosts; at the end it must have requested none and reported nothing."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,900", "no-first-run",
        "disable-background-networking", "disable-component-update", f"user-data-dir={tmp_path}/profile",
        "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Browser(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    try:
        yield driver
        events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        assert any(url.startswith(HERE) for url in asked), "the log of requests works"
        own = (
            HERE,
            "data:",
            "blob:",
            "chrome:",
            "chrome-untrusted:",
            "about:",
        )  # the browser's first page, too
        assert [u for u in asked if not u.startswith(own)] == []
        assert [e for e in driver.get_log("browser") if e["level"] in ("WARNING", "SEVERE")] == []
    finally:
        driver.quit()


def scheme(browser: Any, name: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": name}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def press(browser: Any, *keys: str) -> Any:
    """Type into the focused element, and return the element focused afterwards."""
    for key in keys:
        browser.switch_to.active_element.send_keys(key)
    return browser.switch_to.active_element


def placement(base: str) -> str:
    """Id of the first placement of the service."""
    return str(httpx.get(f"{base}/v1/placements").json()["items"][0]["id"])


def test_cluster_map(browser: Any, base: str) -> None:
    browser.get(base)
    tiles = browser.find_elements(By.CSS_SELECTOR, ".tile:not(.card)")
    assert [t.find_element(By.CLASS_NAME, "level").text for t in tiles] == [
        "slowed",
        "unaffected",
        "unaffected",
        "empty",
        "unaffected",
        "empty",
    ]
    assert "1.40x slowdown" in tiles[0].text
    assert "GiB (predicted) of" in tiles[0].text
    assert "t-2" in browser.find_element(By.CSS_SELECTOR, "section[aria-labelledby=placements]").text


def test_what_if_by_keyboard(browser: Any, base: str) -> None:
    browser.get(base)
    assert press(browser, Keys.TAB).text == "Skip to content"
    assert press(browser, Keys.ENTER).tag_name == "main"
    browser.get(base)
    link = press(browser, Keys.TAB, Keys.TAB, Keys.TAB)
    assert link.text == "What if"
    outline = browser.execute_script("return getComputedStyle(arguments[0]).outlineWidth", link)
    assert float(outline.removesuffix("px")) >= 2, "the focus is seen"
    press(browser, Keys.ENTER)
    browser.wait_for("/what-if")
    for _ in range(9):
        if press(browser, Keys.TAB).get_attribute("name") == "device":
            break
    press(
        browser, "p100", *[Keys.TAB] * (1 + len(SHARING_MODES)), "resnet18-cifar\nresnet18-cifar:batch_size=8"
    )
    assert press(browser, Keys.TAB).tag_name == "summary"
    assert press(browser, Keys.TAB).text == "Predict"
    press(browser, Keys.ENTER)
    WebDriverWait(browser, 60).until(lambda b: b.find_elements(By.ID, "answer-1"))
    browser.wait_for("/what-if")
    assert browser.find_element(By.ID, "answer-1").text == "On p100, time-slice: they fit"
    assert "1.40x" in browser.find_element(By.TAG_NAME, "table").text
    assert "1.27x to 1.54x" in browser.find_element(By.TAG_NAME, "table").text


def test_sign_in_and_out(browser: Any, tmp_path: Path) -> None:
    """With the headers that a browser sends with a form."""
    database = f"sqlite:///{tmp_path}/store.db"
    token = create_token(Store(database), "eyes", ["read"])
    with serve(create_app(ServiceConfig(database_url=database, auth="on"), TableSource())) as port:
        url = f"http://127.0.0.1:{port}"
        webdriver.Chrome.get(browser, f"{url}/what-if?device=p100")
        browser.wait_for("/login")
        browser.find_element(By.ID, "token").send_keys(token + Keys.ENTER)
        browser.wait_for("/what-if?device=p100")
        assert "Sign out" in press(browser, *[Keys.TAB] * 5).text
        press(browser, Keys.ENTER)
        browser.wait_for("/login")
        webdriver.Chrome.get(browser, url)
        browser.wait_for("/login")


def pages(base: str) -> list[str]:
    """Paths of the dashboard, with answers and with an error."""
    return [
        "/",
        "/?state=shared",
        "/?node=nothing",
        "/what-if",
        "/what-if?device=v100&jobs=resnet18-cifar%0Alstm-wikitext2",
        "/what-if?device=v100&device=p100&sharing=mps&sharing=time-slice&jobs=resnet18-cifar",
        "/what-if?jobs=nothing",
        "/jobs/" + placement(base),
        "/login",
    ]


# Whatever the keyboard must reach, and what shows that it has the focus.
_REACHABLE = """
return [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')]
  .filter(e => e.checkVisibility() && !e.disabled && e.type !== 'hidden')
"""
_SCROLLED = """
return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth &&
  ['auto', 'scroll'].includes(getComputedStyle(e).overflowX) && e.tabIndex < 0 && !e.querySelector('a[href], button')).map(e => e.outerHTML.slice(0, 80))
"""
_OUTLINE = """
const s = getComputedStyle(arguments[0]);
return s.outlineStyle === 'none' ? 0 : parseFloat(s.outlineWidth)
"""


@pytest.mark.parametrize("width", [1280, 380])
def test_every_page_by_keyboard(browser: Any, base: str, width: int) -> None:
    """Tab reaches every control in page order, shows the focus, and never gets trapped."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    for path in pages(base):
        browser.get(base + path)
        # A page may be loaded a moment before its first layout, without which nothing is visible.
        WebDriverWait(browser, 10).until(lambda b: len(b.execute_script(_REACHABLE)) >= 4, path)
        expected = browser.execute_script(_REACHABLE)
        for element in expected:
            reached = press(browser, Keys.TAB)
            assert reached == element, (path, element.get_attribute("outerHTML"))
            assert browser.execute_script(_OUTLINE, reached) >= 2, (path, reached.get_attribute("outerHTML"))
        assert browser.execute_script(_SCROLLED) == [], path
        assert press(browser, Keys.TAB).tag_name == "body", f"{path} lets go of the focus"


def test_filter_and_job_by_keyboard(browser: Any, base: str) -> None:
    browser.get(base)
    for _ in range(20):
        if press(browser, Keys.TAB).get_attribute("name") == "state":
            break
    press(browser, "shared", Keys.TAB)
    press(browser, Keys.ENTER)
    browser.wait_for("state=shared")
    tiles = browser.find_elements(By.CSS_SELECTOR, ".tile")
    assert [len(tile.find_elements(By.TAG_NAME, "li")) for tile in tiles] == [2]
    for _ in range(20):
        if press(browser, Keys.TAB).text == "t-2":
            break
    press(browser, Keys.ENTER)
    browser.wait_for("/jobs/")
    assert "t-2" in browser.find_element(By.TAG_NAME, "h1").text


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core of npm: `make axe`")
@pytest.mark.parametrize(("colours", "width"), [("light", 1280), ("dark", 1280), ("light", 380)])
def test_axe_finds_no_fault(browser: Any, base: str, colours: str, width: int) -> None:
    browser.set_window_size(width, 900)
    scheme(browser, colours)
    for path in pages(base):
        browser.get(base + path)
        browser.execute_script(AXE.read_text())
        report = browser.execute_async_script(
            "axe.run().then(arguments[0], e => arguments[0]({error: String(e)}))"
        )
        assert report["passes"], "axe looked at the page"
        faults = [f"{v['impact']}: {v['id']}" for v in report["violations"]]
        print(f"axe-core {report['testEngine']['version']}, {colours}, {width} px, {path.partition('?')[0]}:",
              f"{len(report['passes'])} rules passed, faults {faults}")  # fmt: skip
        assert [(path, v["id"], [n["html"] for n in v["nodes"]]) for v in report["violations"]] == []


def test_the_plot_of_errors_is_explained_at_every_width(browser: Any, base: str) -> None:
    for width in (1280, 380):
        browser.set_window_size(width, 900)
        browser.get(base)
        assert "middle: as predicted" in browser.find_element(By.TAG_NAME, "figcaption").text


def test_long_names_leave_all_columns_in_sight(browser: Any, base: str) -> None:
    browser.set_window_size(1280, 900)
    long = "resnet18-cifar:batch_size=64,precision=amp,optimizer=adam,gradient_accumulation=4"
    for path in ("/?placed=ended", f"/what-if?device=v100&device=k80&jobs={long}%0Alstm-wikitext2"):
        browser.get(base + path)
        wide = "return [...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
        assert set(browser.execute_script(wide)) == {0}, path


@pytest.mark.parametrize("width", [1280, 380])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_light_and_dark(browser: Any, base: str, colours: str, width: int) -> None:
    browser.set_window_size(width, 900)
    scheme(browser, colours)
    for path in pages(base):
        browser.get(base + path)
        page = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", page)[:3])) > 384) == (colours == "light")
        contrast, where = browser.execute_script(_CONTRAST)
        assert contrast >= 4.5, where
        wide = browser.execute_script("return document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{path} is wider than the window"
        spilt = browser.execute_script(
            "return [...document.querySelectorAll('.tile, .facts div')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
        )
        assert spilt == [], f"{path}: text runs over its tile"
        unnamed = browser.execute_script(
            "return [...document.querySelectorAll('input:not([type=hidden]), select, textarea')].filter(e => !e.labels.length).length"
        )
        assert unnamed == 0


def test_api_reference_is_offline(browser: Any, base: str) -> None:
    browser.get(f"{base}/docs")
    WebDriverWait(browser, 30).until(lambda b: b.find_elements(By.CSS_SELECTOR, ".opblock"))
    assert "/v1/predict" in browser.find_element(By.ID, "reference").text
