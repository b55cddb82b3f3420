"""Lists are read page by page, and lose or double nothing while rows come and go."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.client import Client
from phalanx.core.errors import SpecError
from phalanx.operate.control.api.pages import read, written
from tests.operate.control.served import HOST, Served, served


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "home") as one:
        yield one


def pages(one: Served, path: str, between: Callable[[], object] = lambda: None, **query: Any) -> Iterator[list[dict[str, Any]]]:
    """Each page's rows; `between` happens after each."""
    http, url = one.http(), f"/api/v1{path}"
    answer = http.get(url, params=query)
    while True:
        assert answer.status_code == 200, answer.text
        yield answer.json()
        if "next" not in answer.links:
            return
        between()
        answer = http.get(answer.links["next"]["url"])


def test_jobs_come_page_by_page_newest_first(one: Served) -> None:
    jobs = [one.submit(f"job-{number}") for number in range(7)]
    found = list(pages(one, "/jobs", limit=3))
    assert [len(page) for page in found] == [3, 3, 1]
    assert [row["id"] for page in found for row in page] == jobs[::-1]


def test_a_job_that_comes_meanwhile_moves_nothing(one: Served) -> None:
    jobs = [one.submit(f"job-{number}") for number in range(5)]
    found = [row["id"] for page in pages(one, "/jobs", lambda: one.submit("late"), limit=2) for row in page]
    assert found == jobs[::-1]


def test_rows_that_leave_the_filter_meanwhile_hide_no_other(one: Served) -> None:
    """By offset the second page would begin behind as many rows as have gone."""
    running = [one.run(f"job-{number}", "1") for number in range(6)]
    gone = iter((running[5], running[4]))
    found = [row["id"] for page in pages(one, "/jobs", lambda: one.end(next(gone)), limit=2, state="running") for row in page]
    assert found == [one.job_of(attempt) for attempt in reversed(running)]


def test_filters_stay_in_the_address_of_the_next_page(one: Served) -> None:
    for number in range(3):
        one.submit(f"job-{number}")
    answer = one.http().get("/api/v1/jobs", params={"limit": 1, "queue": "default"})
    query = parse_qs(urlsplit(answer.links["next"]["url"]).query)
    assert query["queue"] == ["default"]
    assert query["limit"] == ["1"]


def test_a_fleet_and_what_belongs_to_it_come_whole_unless_pages_are_asked_for(one: Served) -> None:
    for number in range(4):
        one.bench.add(f"node-{number}")
        one.services.secrets.put(one.bench.control.epoch, f"KEY_{number}", b"x" * 8)
    one.tick()
    for path, key, count in (("/nodes", "node", 5), ("/secrets", "name", 4)):
        (whole,) = pages(one, path)
        assert len(whole) == count
        assert [row[key] for page in pages(one, path, limit=2) for row in page] == [row[key] for row in whole]


def test_events_and_artifacts_lead_on_too(one: Served) -> None:
    attempt = one.run("ran")
    for number in range(5):
        one.keep_file(attempt, f"file-{number}", b"%d" % number)
    names = [row["name"] for page in pages(one, "/jobs/ran-1/artifacts", limit=2) for row in page]
    assert names == [f"file-{number}" for number in range(5)]
    found = [row["seq"] for page in pages(one, "/events", limit=2) for row in page]
    assert found == list(range(1, one.bench.world.seq + 1))
    newest = one.http().get("/api/v1/events", params={"newest": True, "limit": 1})
    assert "link" not in newest.headers


def test_a_cursor_that_the_list_did_not_give_is_one_clear_refusal(one: Served) -> None:
    of_nodes = written("nodes", ("node-a",))
    strange = base64.urlsafe_b64encode(json.dumps(["jobs", "1"]).encode()).decode()
    for cursor in (
        "x",
        "!!",
        "AAAA",
        of_nodes,
        strange,
        written("jobs", (1, 2)),
        written("jobs", (-1,)),
        written("jobs", (2**70,)),
    ):
        answer = one.http().get("/api/v1/jobs", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["field"]) == (422, "cursor"), cursor
        assert "leave it out" in answer.json()["fix"]


@given(
    st.lists(
        st.one_of(st.integers(0, 2**62), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))), min_size=1
    )
)
def test_a_cursor_reads_as_the_key_it_was_made_of(parts: list[int | str]) -> None:
    key = tuple(parts)
    assert read("list", written("list", key), tuple(type(part) for part in key)) == key
    with pytest.raises(SpecError):
        read("other", written("list", key), tuple(type(part) for part in key))


@given(st.text(max_size=40))
def test_whatever_is_sent_as_a_cursor_is_refused_or_a_key(text: str) -> None:
    try:
        assert len(read("jobs", text, (int,))) == 1
    except SpecError as error:
        assert error.field == "cursor"


def test_the_client_reads_all_pages(one: Served) -> None:
    jobs = [one.submit(f"job-{number}") for number in range(5)]
    asked: list[str] = []
    http = one.http()

    def passed_on(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.query, "ascii"))
        small = request.url.copy_set_param("limit", min(2, int(request.url.params.get("limit", 2))))
        answer = http.get(str(small.copy_with(scheme="http", host=HOST, port=None)))
        return httpx.Response(answer.status_code, content=answer.content, headers=answer.headers)

    client = Client(f"http://{HOST}", one.admin, httpx.MockTransport(passed_on))
    assert [job.id for job in client.jobs(limit=None)] == jobs[::-1]
    assert len(asked) == 3
    assert [job.id for job in client.jobs(limit=3)] == jobs[:1:-1]
    assert asked[3] == "limit=3"
    assert "limit=1" in asked[4].split("&")


def test_the_client_follows_no_address_of_a_server_elsewhere(one: Served) -> None:
    hosts: list[str] = []

    def led_astray(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        link = {} if len(hosts) > 1 else {"Link": '<https://evil.example/take?cursor=abc>; rel="next"'}
        return httpx.Response(200, json=[one.http().get("/api/v1/nodes").json()[0]], headers=link)

    Client(f"http://{HOST}", one.admin, httpx.MockTransport(led_astray)).nodes()
    assert hosts == [HOST, HOST]
