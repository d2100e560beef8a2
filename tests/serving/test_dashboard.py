"""The dashboard's pages."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from profiling.workload import Workload
from scheduling.core.snapshot import Gpu, Tenant
from serving.auth import COOKIE, create_token
from serving.dashboard import health, view
from serving.store import Store
from serving.store.tables import ObservationRow
from tests.serving.conftest import Start
from tests.serving.problems import problem

CLUSTER = {
    "nodes": [
        {
            "name": "node-<a>",
            "gpus": [
                {
                    "device": "v100",
                    "tenants": [{"job": "resnet18-cifar", "iterations_left": 100, "job_id": "t-1"}] * 2,
                },
                {"device": "v100"},
            ],
        }
    ]
}


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_empty(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "No cluster stored yet" in page.text


def test_overview(client: TestClient) -> None:
    client.put("/v1/cluster", json=CLUSTER)
    client.post("/v1/placements", json={"job": "lstm-wikitext2", "job_id": "t-2", "iterations": 50})
    observed = {"of": {"device": "v100", "jobs": ["resnet18-cifar"]}, "step_time_s": 0.2}
    client.post("/v1/observations", json={"observations": [observed]})
    page = client.get("/").text
    assert "node-&lt;a&gt;" in page
    assert "1.40x slowdown" in page
    assert "t-2" in page
    assert "50.0 %" in page
    assert "table-1" in page


def test_what_if(client: TestClient) -> None:
    page = client.get(
        "/what-if", params={"device": "p100", "jobs": "resnet18-cifar\nresnet18-cifar:batch_size=8"}
    ).text
    assert "they fit" in page
    assert "1.40x" in page
    assert "<option selected>p100</option>" in page
    assert "such as lstm-wikitext2" in client.get("/what-if", params={"jobs": "lstm"}).text
    wrong = client.get("/what-if", params={"jobs": "<script>alert(1)</script>"})
    assert wrong.status_code == 200
    assert 'role="alert"' in wrong.text
    assert "<script" not in wrong.text


def test_pages_load_nothing_external(client: TestClient) -> None:
    for path in ("/", "/what-if", "/login"):
        text = client.get(path).text
        assert not re.search(r"https?://", text)
        assert 'style="' not in text
        assert '<html lang="en">' in text
        assert text.count("<h1>") == 1
    style = client.get("/static/style.css")
    assert style.headers["content-type"].startswith("text/css")
    assert "prefers-color-scheme: dark" in style.text


def test_sign_in(start: Start, tmp_path: Path) -> None:
    token = create_token(Store(f"sqlite:///{tmp_path}/store.db"), "eyes", ["admin"])
    client = start(auth="on")
    assert client.get("/").status_code == 401
    assert client.post("/login", data={"token": "wrong"}).status_code == 401
    # Under `no-referrer` a browser sends `Origin: null`, which is refused as another site.
    assert client.get("/login").headers["referrer-policy"] == "same-origin"
    entered = client.post("/login", data={"token": token}, follow_redirects=False)
    assert entered.status_code == 303
    assert "HttpOnly" in entered.headers["set-cookie"]
    assert client.get("/").status_code == 200
    assert client.put("/v1/cluster", json=CLUSTER).status_code == 401, "the cookie counts for reading only"


def test_cookies_of_other_services_do_not_hide_the_session(start: Start, tmp_path: Path) -> None:
    """Browsers send those of all ports of a host, whatever is in them."""
    token = create_token(Store(f"sqlite:///{tmp_path}/store.db"), "eyes", ["read"])
    client = start(auth="on")
    client.post("/login", data={"token": token}, follow_redirects=False)
    own = f"{COOKIE}={client.cookies[COOKIE]}"
    client.cookies.clear()
    for other in ('view={"width":9}', "list[0]=1", "bare", "name=\u00e9"):
        headers = {"Cookie": f"{other}; {own}".encode()}
        assert client.get("/", headers=headers).status_code == 200, other


def test_sign_in_leads_back(start: Start, tmp_path: Path) -> None:
    """To the page asked for, and to no other host."""
    token = create_token(Store(f"sqlite:///{tmp_path}/store.db"), "eyes", ["read"])
    client = start(auth="on")
    asked = "/what-if?jobs=resnet18-cifar%0Alstm-wikitext2&device=v100"
    sent = client.get(asked, headers=BROWSER, follow_redirects=False)
    assert sent.status_code == 303
    form = client.get(sent.headers["location"], headers=BROWSER).text
    (back,) = re.findall(r'name="next" value="([^"]*)"', form)
    assert "Sign out" not in form

    def enter(page: str) -> str:
        data = {"token": token, "next": page}
        return client.post("/login", data=data, follow_redirects=False).headers["location"]

    assert enter(unescape(back)) == asked
    for elsewhere in ("//evil.example", "/\\evil.example", "https://evil.example", "", "/a\nb", "evil"):
        assert enter(elsewhere) == "/", elsewhere
    assert 'action="/logout"' in client.get("/", headers=BROWSER).text
    client.post("/logout")
    assert client.get("/", headers=BROWSER, follow_redirects=False).status_code == 303


def test_browsers_are_shown_errors_as_pages(client: TestClient) -> None:
    for path, status in (("/jobs/" + "0" * 32, 404), ("/?first=<b>", 422)):
        shown = client.get(path, headers=BROWSER)
        assert shown.status_code == status
        assert shown.headers["content-type"] == "text/html; charset=utf-8"
        assert 'role="alert"' in shown.text
        assert "<b>" not in shown.text
        problem(client.get(path), status)
    assert client.get("/", headers=BROWSER).headers["cache-control"] == "no-store"


def test_a_set_that_does_not_fit_is_not_shown_as_unaffected(client: TestClient) -> None:
    huge = {"job": "resnet18-cifar:batch_size=100000", "iterations_left": 1}
    client.put(
        "/v1/cluster", json={"nodes": [{"name": "a", "gpus": [{"device": "v100", "tenants": [huge]}]}]}
    )
    page = client.get("/").text
    assert '<p class="level">too large</p>' in page
    assert '<p class="level">unaffected' not in page


def test_static_files(client: TestClient) -> None:
    style = client.get("/static/style.css")
    again = client.get("/static/style.css", headers={"If-None-Match": style.headers["etag"]})
    assert again.status_code == 304
    assert client.get("/static/..%2froutes.py").status_code == 404
    assert client.get("/static/routes.py").status_code == 404
    reference = client.get("/docs").text
    assert not re.search(r"https?://", reference)
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', reference):
        assert client.get(path).status_code == 200, path


def many(nodes: int) -> dict[str, object]:
    """Nodes of one V100 and one P100; every fourth has two jobs on its V100."""
    pair = [
        {"job": "resnet18-cifar", "iterations_left": 100},
        {"job": "lstm-wikitext2", "iterations_left": 50},
    ]
    return {
        "nodes": [
            {
                "name": f"rack{k // 10}-node{k}",
                "gpus": [
                    {
                        "device": "v100",
                        "tenants": [t | {"job_id": f"j{k}"} for t in pair] if k % 4 == 0 else [],
                    },
                    {"device": "p100"},
                ],
            }
            for k in range(nodes)
        ]
    }


def test_totals_filters_and_pages(client: TestClient) -> None:
    client.put("/v1/cluster", json=many(150))
    page = client.get("/").text
    assert "300 on 150 nodes" in page
    assert page.index('id="health"') < page.index("rack0-node0")
    row = re.search(r'<th scope="row">v100</th>(.*?)</tr>', page)
    assert row is not None
    # GPUs, in use, shared, empty
    assert re.findall(r"<td>(\d+)</td>", row[1])[:4] == ["150", "38", "38", "112"]
    assert "GPUs 1 to 96 of 300." in page
    further = re.search(r'href="/\?([^"]*)">next GPUs', page)
    assert further is not None
    assert "GPUs 97 to 192 of 300." in client.get("/?" + further[1].replace("&amp;", "&")).text
    shared = client.get("/", params={"state": "shared", "node": "rack1-"}).text
    assert "GPUs 1 to 2 of 2 that match, 300 in total." in shared
    assert "rack1-node12" in shared
    assert "Matching GPUs" in shared, "one grid rather than a section for each node"
    assert "rack1-node11" not in shared
    assert "of 1 that match" in client.get("/", params={"tenant": "J148"}).text
    assert "of 150 that match" in client.get("/", params={"device": "p100"}).text
    assert "No matching GPUs." in client.get("/", params={"tenant": "<nobody>"}).text


def test_filters_and_pages_that_no_longer_exist(client: TestClient) -> None:
    """A bookmark, or a page reloaded after the cluster has shrunk."""
    client.put("/v1/cluster", json=many(150))
    beyond = client.get("/", params={"first": 5000, "state": "empty"}).text
    assert "GPUs 193 to 262 of 262 that match" in beyond
    assert "next GPUs" not in beyond
    gone = client.get("/", params={"device": "k80", "state": "<broken>"}).text
    assert "No matching GPUs." in gone
    assert "previous GPUs" not in client.get("/", params={"device": "k80", "first": 96}).text
    for chosen in ("k80", "&lt;broken&gt;"):
        assert f"<option selected>{chosen}</option>" in gone, "what the list is filtered by is shown"


def test_nodes_without_gpus_are_counted(client: TestClient) -> None:
    nodes = [*many(2)["nodes"], {"name": "failed", "gpus": []}]  # type: ignore[misc]
    client.put("/v1/cluster", json={"nodes": nodes})
    assert "4 on 3 nodes, 1 without GPUs</dd>" in client.get("/").text


def test_a_large_overview_is_computed_beside_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    for name in ("_taken", "_totals"):
        real = getattr(view, name)

        def spied(*given: Any, real: Any = real) -> Any:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            seen.append(real.__name__)
            return real(*given)

        monkeypatch.setattr(view, name, spied)
    client.put("/v1/cluster", json=many(150))
    assert client.get("/").status_code == 200
    assert seen == ["_taken", "_totals"]


def test_page_of_a_job(client: TestClient) -> None:
    node = CLUSTER["nodes"][0]
    client.put("/v1/cluster", json={"nodes": [node | {"gpus": [*node["gpus"], *[{"device": "v100"}] * 3]}]})
    placed = client.post("/v1/placements", json={"job": "lstm-wikitext2", "job_id": "t-2", "iterations": 50})
    key = placed.json()["id"]
    assert f'href="/jobs/{key}"' in client.get("/").text
    observed = {"of": {"device": "v100", "jobs": ["lstm-wikitext2"]}, "step_time_s": 0.2, "placement_id": key}
    client.post("/v1/observations", json={"observations": [observed]})
    page = client.get(f"/jobs/{key}").text
    assert "Why it is there" in page
    assert "predicted to take" in page
    assert "Alternatives" in page
    assert "and 2 more like it" in page
    assert "<td>nothing else on v100</td>" in page
    assert " on 1 node</dd>" in client.get("/").text
    assert client.get("/jobs/" + "0" * 32).status_code == 404


def test_page_of_a_job_says_what_was_never_measured(client: TestClient) -> None:
    for device, count in (("v100", 0), ("h100", 1)):
        client.put("/v1/cluster", json={"nodes": [{"name": device, "gpus": [{"device": device}]}]})
        placed = client.post("/v1/placements", json={"job": "lstm-wikitext2", "iterations": 50}).json()
        page = client.get(f"/jobs/{placed['id']}").text
        assert page.count("never measured on this GPU type") == count
        client.post(f"/v1/placements/{placed['id']}/end")
        for page in (f"/jobs/{placed['id']}", "/?placed=ended"):  # of the decision
            assert client.get(page).text.count("never measured on this GPU type") == count


def test_a_name_written_from_right_to_left_leaves_the_rest_of_the_page_alone(client: TestClient) -> None:
    """An override of the direction would turn round what is beside the name, too."""
    client.put("/v1/cluster", json={"nodes": [{"name": "a", "gpus": [{"device": "v100"}]}]})
    asked = {"job": "lstm-wikitext2", "iterations": 1e6, "job_id": "\u202ename"}
    ids = [client.post("/v1/placements", json=asked).json()["id"] for _ in range(2)]
    assert client.get("/").text.count("<bdi>\u202ename</bdi></a>") == 4
    assert "Sharing with: <bdi>\u202ename</bdi>.</p>" in client.get(f"/jobs/{ids[0]}").text


def test_a_waiting_job_shows_the_reason(client: TestClient) -> None:
    gpu = {"device": "v100", "tenants": [{"job": "resnet18-cifar:batch_size=100000", "iterations_left": 1}]}
    client.put("/v1/cluster", json={"nodes": [{"name": "a", "gpus": [gpu]}]})
    answer = client.post("/v1/placements", json={"job": "lstm-wikitext2", "job_id": "late", "iterations": 50})
    entry = answer.json()
    assert entry["state"] == "waiting"
    for number in range(view.PAGE_PLACEMENTS):
        client.post("/v1/placements", json={"job": "lstm-wikitext2", "job_id": f"later-{number}"})
        client.post(f"/v1/placements/{client.get('/v1/placements').json()['items'][0]['id']}/end")
    assert ">late</bdi></a>" not in client.get("/").text, "it is not among the latest"
    assert '<a href="/?placed=waiting#placements">1</a>' in client.get("/").text
    assert ">late</bdi></a>" in client.get("/?placed=waiting").text
    ended = client.get("/?placed=ended").text
    assert "later-1" in ended
    assert "waits" not in ended
    assert "No matching placements." in client.get("/?placed=expired").text
    page = client.get(f"/jobs/{entry['id']}").text
    assert "Why it waits" in page
    client.post(f"/v1/placements/{entry['id']}/end")
    over = client.get(f"/jobs/{entry['id']}").text
    assert "Why it waited" in over
    assert "<dd>nowhere</dd>" in over
    assert entry["decision"]["reasons"][0].split(";")[0][:20] in page.replace("&#39;", "'")


def test_what_if_side_by_side(client: TestClient) -> None:
    asked = {
        "device": ["p100", "v100"],
        "sharing": ["time-slice", "mps"],
        "jobs": "resnet18-cifar\nlstm-wikitext2",
    }
    page = client.get("/what-if", params=asked).text
    assert "Side by side" in page
    assert page.count('id="answer-') == 4
    assert "upper bound" in page
    assert "never measured" not in page
    unseen = client.get("/what-if", params=asked | {"device": ["p100", "h100"]}).text
    assert unseen.count("no: never measured") == 2
    many_devices = {
        "device": ["v100", "p100", "k80", "t4", "a100", "h100", "a40"],
        "jobs": "resnet18-cifar",
    }
    wrong = client.get("/what-if", params=many_devices | {"sharing": ["time-slice", "mps"]}).text
    assert "too many devices" in wrong


def test_observations_are_filtered_by_device_and_job(client: TestClient) -> None:
    def report(device: str, jobs: list[str], *step_times_s: float) -> None:
        for step_time_s in step_times_s:
            seen = {"of": {"device": device, "jobs": jobs}, "step_time_s": step_time_s}
            assert client.post("/v1/observations", json={"observations": [seen]}).status_code == 201

    client.put("/v1/cluster", json=CLUSTER)
    report("v100", ["resnet18-cifar"], 0.2, 0.2, 0.2)
    report("p100", ["resnet18-cifar"], 0.21, 0.2)
    report("v100", ["lstm-wikitext2"], 0.12)

    def rows(page: str) -> list[list[str]]:
        table = page[page.index("By device and model") :]
        return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", table, re.S)]

    page = client.get("/").text
    assert page.count("<circle") == 6
    assert {(r[0], r[1]) for r in rows(page)} == {
        ("v100", "resnet18-cifar"), ("p100", "resnet18-cifar"), ("v100", "lstm-wikitext2")
    }  # fmt: skip
    page = client.get(
        "/", params={"observed_device": "v100", "observed_job": "resnet18-cifar", "node": "a<b"}
    ).text
    assert page.count("<circle") == 3
    ((_, _, count, own, corrected, *_),) = rows(page)
    # Two of three were predicted once it was observed.
    assert (count, own) == ("3", "50.0 %")
    assert float(corrected.removesuffix(" %")) == pytest.approx(50.0 / 3, abs=0.5)
    assert "<option selected>v100</option>" in page
    assert '<input type="hidden" name="node" value="a&lt;b">' in page
    assert '<input type="hidden" name="observed_device" value="v100">' in page
    assert client.get("/", params={"observed_device": "p100"}).text.count("<circle") == 2
    none = client.get("/", params={"observed_device": "<k80>"}).text
    assert "No matching observations." in none
    assert "<circle" not in none
    assert "<option selected>&lt;k80&gt;</option>" in none


def test_errors_without_stored_corrections(start: Start, tmp_path: Path) -> None:
    """Of observations that an earlier version stored."""
    client = start()
    seen = {"of": {"device": "v100", "jobs": ["resnet18-cifar"]}, "step_time_s": 0.2}
    client.post("/v1/observations", json={"observations": [seen]})
    with Store(f"sqlite:///{tmp_path}/store.db").write() as session:
        session.execute(update(ObservationRow).values(corrected_step_time_s=None))
    assert client.get("/").text.count("<td>-</td>") == 2


def test_levels_of_sets_that_have_ended_are_forgotten(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_NEW_SETS", 3)
    levels, service = health.Health(), client.app.state.service  # type: ignore[attr-defined]
    for batch in range(1, 20):
        tenant = Tenant(Workload.parse(f"resnet18-cifar:batch_size={batch}"), 10.0)
        gpus = [Gpu("0", "v100", "time-slice", (tenant,)), Gpu("1", "v100", "time-slice", ())]
        found = client.portal.call(levels.levels, service, gpus)  # type: ignore[union-attr]
        assert found == ["unaffected", "empty"]
        assert len(levels._levels) <= 8
