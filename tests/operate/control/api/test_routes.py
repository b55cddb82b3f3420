"""What the API tells of attempts, runs, quotas, usage and deliveries; and that docs/api.md has every route, and no other."""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from phalanx.core.devices import CPU_SLOT
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.spec import Notify
from phalanx.operate.control import notices, tables
from phalanx.operate.control.notices import Ended, Notice
from phalanx.operate.control.usage_views import Window, usage_views
from tests.operate.control.control_bench import a_spec
from tests.operate.control.served import Served, served

ROOT = Path(__file__).parents[4]
RAN = AttemptId("ran-1.1")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "home") as one:
        one.run("ran")
        yield one


def get(one: Served, path: str, **query: Any) -> Any:
    answer = one.http().get(f"/api/v1{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def documented() -> dict[tuple[str, str], str]:
    """(method, path) of each route in the table of docs/api.md, with braces for what is named, to its query."""
    found: dict[tuple[str, str], str] = {}
    for line in (ROOT / "docs/api.md").read_text().splitlines():
        if line.startswith("| `"):
            cell = line.split(" | ")[0]
            found |= {(method, bare(path)): query for method, path, query in re.findall(r"`([A-Z]+) (/[^`?]*)([^`]*)`", cell)}
    return found


def bare(path: str) -> str:
    return re.sub(r"\{[a-z0-9_]+\}", "{}", path)


def test_every_route_is_documented_and_no_other(one: Served) -> None:
    paths = one.app.openapi()["paths"]
    real = {(method.upper(), bare(path)) for path, of_path in paths.items() for method in of_path}
    assert documented().keys() - real == {("WS", "/api/v1/agent"), ("GET", "/healthz")}
    assert real - documented().keys() == set()


def test_every_parameter_of_a_route_is_documented(one: Served) -> None:
    told = documented()
    for path, of_path in one.app.openapi()["paths"].items():
        for method, operation in of_path.items():
            asked = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"}
            assert asked == set(re.findall(r"(\w+)=", told[method.upper(), bare(path)])), f"{method} {path}"


def test_attempts_are_listed_and_shown(one: Served) -> None:
    one.end(RAN, 1)
    one.bench.clock.sleep(120_000)
    one.tick(2)
    rows = get(one, "/jobs/ran-1/attempts")
    assert [row["attempt"] for row in rows] == ["ran-1.1", "ran-1.2"]
    assert rows == get(one, "/jobs/ran-1")["attempts"]
    assert get(one, "/jobs/ran-1/attempts/1") == get(one, "/jobs/ran-1/attempts/ran-1.1") == rows[0]
    assert [row["attempt"] for row in get(one, "/jobs/ran-1/attempts", limit=1)] == ["ran-1.1"]
    assert one.http().get("/api/v1/jobs/ran-1/attempts/9").status_code == 404


def test_a_run_spans_the_attempts_of_a_job_that_began(one: Served) -> None:
    waits = one.submit("waits", "8")
    one.measure(RAN, 50)
    (run,) = get(one, "/runs")
    assert run == get(one, "/runs/ran-1")
    assert (run["run"], run["state"], run["step"], run["config"]["lr"]) == ("ran-1", "running", 50, 0.5)
    curves = get(one, "/runs/ran-1/metrics", points=10)
    assert 5 <= len(curves["points"]) <= 11
    assert set(curves["metrics"]) == {"val_loss"}
    assert get(one, "/runs", project="other") == []
    assert one.http().get(f"/api/v1/runs/{waits}").status_code == 404


def test_usage_is_clipped_to_the_window_and_its_parts_add_up(one: Served) -> None:
    begun = one.bench.attempt(JobId("ran-1")).placed_ms
    one.measure(RAN, 5)
    one.bench.clock.sleep(10_000)
    one.run("other", "1")
    one.bench.clock.sleep(10_000)
    now = one.bench.clock.now_ms()
    by_job = {row["name"]: row for row in get(one, "/usage", by="job", since_ms=begun, until_ms=now)}
    assert by_job["ran-1"]["allocated"] == 2 * 1000 * (now - begun)
    assert by_job["ran-1"]["used"] == 1000 * 5 * 900
    assert (by_job["other-2"]["allocated"], by_job["other-2"]["used"]) == (1000 * 10_000, 0)
    assert by_job["other-2"]["queue"] == "default"
    (queue,) = get(one, "/usage", since_ms=begun, until_ms=now)
    assert queue["allocated"] == sum(row["allocated"] for row in by_job.values())
    middle = begun + 7_000
    halves = [get(one, "/usage", since_ms=since, until_ms=until)[0] for since, until in ((begun, middle), (middle, now))]
    assert sum(half["allocated"] for half in halves) == queue["allocated"]
    assert sum(half["used"] for half in halves) == queue["used"]
    assert get(one, "/usage", since_ms=0, until_ms=begun) == []
    assert get(one, "/usage")[0]["allocated"] == queue["allocated"]
    assert one.http().get("/api/v1/usage", params={"since_ms": now + 1}).status_code == 422


def test_usage_comes_as_a_table_too(one: Served) -> None:
    one.bench.clock.sleep(5_000)
    answer = one.http().get("/api/v1/usage", params={"format": "csv", "by": "job"})
    assert answer.headers["content-type"].startswith("text/csv")
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert {**row, "allocated": int(row["allocated"])}.items() >= {"name": "ran-1", "user": "ada", "allocated": 10_000_000}.items()


def test_what_a_gang_let_go_of_counts_until_then(one: Served) -> None:
    record = one.bench.attempt(JobId("ran-1"))
    node = record.placement.slices[0].node
    gone = replace(one.bench.world, attempts={record.id: replace(record, released=(node,))})
    window = Window(record.placed_ms, record.placed_ms + 10_000)
    (row,) = usage_views(gone, window, "queue", {(record.id, node): record.placed_ms + 4_000}, lambda *_: 0)
    assert row.allocated == 2 * 1000 * 4_000


def test_quotas_are_rows_of_queues_and_types(one: Served) -> None:
    policy = {"queues": {"default": {}, "research": {"quota": {CPU_SLOT: 4}}}}
    answer = one.http().put("/api/v1/policy", json={"policy": policy})
    assert answer.status_code == 200, answer.text
    one.tick(2)
    rows = {(row["queue"], row["type"]): row for row in get(one, "/quotas")}
    assert rows["research", CPU_SLOT]["quota"] == 4
    assert (rows["default", CPU_SLOT]["held"], rows["default", CPU_SLOT]["quota"]) == (2.0, None)
    assert get(one, "/queues/research") in get(one, "/queues")
    assert one.http().get("/api/v1/queues/none").status_code == 404


def test_deliveries_wait_and_are_hurried(one: Served) -> None:
    spec = replace(a_spec("told", "1"), notify=Notify(webhook="https://hooks.example/secret-path", on=("finished",)))
    job = one.bench.submit(spec)
    one.tick(2)
    attempt = one.bench.attempt(job).id
    one.bench.agents["node-a"].run(attempt)
    one.tick()
    one.end(attempt)
    (row,) = get(one, "/webhooks/deliveries")
    assert (row["job"], row["occasion"], row["host"], row["tries"]) == (job, "finished", "hooks.example", 0)
    assert "secret-path" not in one.http().get("/api/v1/webhooks/deliveries").text
    now = one.bench.clock.now_ms()
    (waiting,) = notices.waiting(one.bench.store, 0, 10)
    notices.put_off(one.bench.store, one.bench.control.epoch, waiting.notice, now + 3_600_000)
    assert get(one, "/webhooks/deliveries")[0]["due_ms"] == now + 3_600_000
    answer = one.http().post(f"/api/v1/webhooks/deliveries/{row['id']}/redeliver")
    assert (answer.status_code, answer.json()["due_ms"], answer.json()["tries"]) == (202, now, 1)
    assert [one.seq for one in notices.due(one.bench.store, waiting.notice.webhook, now, 10)] == [row["id"]]
    assert one.http().post("/api/v1/webhooks/deliveries/99/redeliver").status_code == 404


def test_what_became_of_deliveries_is_told_page_by_page(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest of each webhook, to who may see the job."""
    monkeypatch.setattr(notices, "KEPT", 3)
    store, epoch = one.bench.store, one.bench.control.epoch

    def told(job: str, seq: int, webhook: str, why: str = "", team: str = "") -> None:
        entry = {"team": team, "job": job, "id": seq, "occasion": "finished", "at_ms": seq}
        with store.leading(epoch) as connection:
            row = {"seq": seq, "webhook": webhook, "entry": json.dumps(entry), "tries": 0, "due_ms": 0}
            connection.execute(insert(tables.notices), row)
        ended = Ended(Notice(seq, webhook, entry, 1), 50 + seq, "given_up" if why else "accepted", why)
        for _ in range(2):
            notices.done(store, epoch, ended)

    job = one.submit("told", "1")
    for seq in range(1, 6):
        told(job, seq, "https://hooks.example/secret-path", "it answered 500 " * 30 if seq == 5 else "")
    told(job, 6, "https://other.example/x")
    found = get(one, "/webhooks/history")
    assert [(row["id"], row["host"], row["outcome"]) for row in found] == [
        (6, "other.example", "accepted"),
        (5, "hooks.example", "given_up"),
        (4, "hooks.example", "accepted"),
        (3, "hooks.example", "accepted"),
    ]
    assert (found[1]["tries"], found[1]["ended_ms"], len(found[1]["detail"])) == (1, 55, 200)
    assert "secret-path" not in one.http().get("/api/v1/webhooks/history").text
    first = one.http().get("/api/v1/webhooks/history", params={"limit": 3})
    assert [row["id"] for row in first.json()] == [6, 5, 4]
    assert [row["id"] for row in one.http().get(first.links["next"]["url"]).json()] == [3]
    assert get(one, "/webhooks/deliveries") == []
    with one.http() as http:
        http.post("/api/v1/teams", json={"team": "red"})
        http.post("/api/v1/users", json={"user": "rob"})
        http.put("/api/v1/teams/red/members/rob", json={"role": "member"})
        token = http.post("/api/v1/tokens", json={"name": "test", "user": "rob"}).json()["token"]
    assert one.http(token).get("/api/v1/webhooks/history").json() == []
    told(job, 8, "https://hooks.example/secret-path")
    told(job, 7, "https://hooks.example/secret-path", "it answered 500")  # given up a day after others were accepted
    assert [row["id"] for row in get(one, "/webhooks/history")][:3] == [7, 8, 6]
    for seq in range(10, 14):
        told(job, seq, "https://hooks.example/secret-path", team="blue")
    assert [row["id"] for row in get(one, "/webhooks/history")] == [13, 12, 11, 7, 8, 6, 5]
    monkeypatch.setattr(notices, "KEPT_OF_TEAM", 2)
    told(job, 14, "https://third.example/x", team="blue")
    assert [row["id"] for row in get(one, "/webhooks/history")] == [14, 13, 7, 8, 6, 5], "another team has what it had"


def test_what_is_counted_is_the_teams_own(one: Served) -> None:
    """`running` and `waiting` of a queue of nobody's, and jobs by state. What all hold of it is what its limit is judged by."""
    with one.http() as http:
        assert http.post("/api/v1/teams", json={"team": "red"}).status_code == 201
        assert http.post("/api/v1/users", json={"user": "rob"}).status_code == 201
        assert http.put("/api/v1/teams/red/members/rob", json={"role": "member"}).status_code == 200
        token = http.post("/api/v1/tokens", json={"name": "test", "user": "rob"}).json()["token"]
    with one.http(token) as http:
        for name in ("mine", "too"):
            assert http.post("/api/v1/jobs", json={"spec": {"name": name, "entrypoint": "true", "team": "red"}}).status_code == 201
        one.submit("large", "8")
        (seen,) = http.get("/api/v1/queues").json()
        alone = http.get("/api/v1/queues/default").json()
        counted = http.get("/api/v1/status").json()["jobs"]
    (all_of_it,) = get(one, "/queues")
    assert (all_of_it["running"], all_of_it["waiting"]) == (3, 1)
    assert (seen["running"], seen["waiting"], seen["held"]) == (2, 0, all_of_it["held"])
    assert alone == seen
    assert counted == {"starting": 2}
    assert get(one, "/status")["jobs"] == {"pending": 1, "running": 1, "starting": 2}
