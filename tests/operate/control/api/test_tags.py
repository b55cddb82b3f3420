"""Nothing is sent twice to who has it, and nothing is overwritten that somebody else changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.ids import AttemptId
from phalanx.operate.control import views
from phalanx.operate.control.api.tags import names, tag_of
from tests.operate.control.served import Served, served

READ = (
    "/jobs",
    "/jobs/ran-1",
    "/jobs/ran-1/why",
    "/nodes",
    "/nodes/node-a",
    "/policy",
    "/queues",
    "/secrets",
    "/models",
    "/events",
)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "home") as one:
        one.run("ran")
        one.services.secrets.put(one.bench.control.epoch, "TOKEN", b"a-long-value")
        yield one


def read(one: Served, path: str, known: str = "") -> Any:
    return one.http().get(f"/api/v1{path}", headers={"If-None-Match": known} if known else {})


@pytest.mark.parametrize("path", READ)
def test_who_has_it_hears_that_nothing_changed(one: Served, path: str) -> None:
    tag = read(one, path).headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = read(one, path, known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-type" not in again.headers
    assert read(one, path, '"other"').status_code == 200


def test_any_change_of_a_job_is_another_tag(one: Served) -> None:
    path, tags = f"/jobs/{one.submit('second', '8')}", set()

    def look() -> None:
        for where in (path, "/jobs"):
            tag = read(one, where).headers["etag"]
            assert (where, tag) not in tags
            tags.add((where, tag))

    look()
    one.bench.clock.sleep(1_000)
    one.http().post(f"/api/v1{path}/pause")
    look()
    one.http().post(f"/api/v1{path}/resume")
    one.tick()
    look()
    tags = {read(one, "/jobs/ran-1").headers["etag"]}
    for step in (3, 4):
        one.measure(AttemptId("ran-1.1"), step)
        tags.add(read(one, "/jobs/ran-1").headers["etag"])
    assert len(tags) == 3


def test_a_known_job_is_not_rendered_again(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = {path: read(one, path).headers["etag"] for path in ("/jobs", "/jobs/ran-1")}
    monkeypatch.setattr(views, "job_view", None)  # whoever renders fails
    for path, tag in tags.items():
        assert read(one, path, tag).status_code == 304


def test_a_page_of_another_filter_is_no_known_one(one: Served) -> None:
    tag = read(one, "/jobs").headers["etag"]
    assert read(one, "/jobs?state=finished", tag).status_code == 200


def test_a_policy_that_somebody_else_changed_is_not_overwritten(one: Served) -> None:
    http, body = one.http(), {"policy": {"queues": {"research": {"weight": 2.0}}}}
    view = http.get("/api/v1/policy")
    tag = view.headers["etag"]
    assert view.json()["tag"] == tag
    put = http.put("/api/v1/policy", json=body, headers={"If-Match": tag})
    assert put.status_code == 200
    assert put.headers["etag"] == put.json()["tag"] == http.get("/api/v1/policy").headers["etag"] != tag
    late = http.put("/api/v1/policy", json={"policy": {}}, headers={"If-Match": tag})
    assert (late.status_code, late.json()["title"], late.json()["field"]) == (412, "Stale", "policy")
    assert http.get("/api/v1/policy").json()["policy"] == put.json()["policy"]
    assert http.put("/api/v1/policy", json={"policy": {}}, headers={"If-Match": "*"}).status_code == 200
    assert http.put("/api/v1/policy", json=body).status_code == 200


def test_a_node_is_drained_as_it_was_seen_or_not(one: Served) -> None:
    http, body = one.http(), {"reason": "a fan"}
    tag = http.get("/api/v1/nodes/node-a").headers["etag"]
    one.bench.clock.sleep(5_000)
    one.bench.agents["node-a"].renew()
    one.tick()
    assert http.get("/api/v1/nodes/node-a").headers["etag"] == tag
    one.run("more", "1")
    stale = http.post("/api/v1/nodes/node-a/drain", json=body, headers={"If-Match": tag})
    assert (stale.status_code, one.bench.world.nodes[one.bench.agents["node-a"].node].drained) == (412, "")
    tag = http.get("/api/v1/nodes/node-a").json()["tag"]
    drained = http.post("/api/v1/nodes/node-a/drain", json=body, headers={"If-Match": tag})
    assert drained.json()["drained"] == "a fan"
    assert http.post("/api/v1/nodes/node-a/undrain", headers={"If-Match": tag}).status_code == 412
    assert http.post("/api/v1/nodes/node-a/undrain", headers={"If-Match": drained.json()["tag"]}).status_code == 200
    assert http.post("/api/v1/nodes/nowhere/undrain", headers={"If-Match": tag}).status_code == 404
    assert http.get("/api/v1/nodes/nowhere").status_code == 404


def test_a_secret_is_replaced_as_it_was_seen_or_not(one: Served) -> None:
    http, at = one.http(), "/api/v1/secrets/TOKEN"
    first = http.get(at).headers["etag"]
    assert http.put(at, content=b"another-value", headers={"If-None-Match": "*"}).status_code == 412
    assert http.put(at, content=b"another-value", headers={"If-Match": first}).status_code == 204
    second = http.get(at).json()["tag"]
    assert second != first  # though the clock stood still
    assert http.put(at, content=b"a-third-value", headers={"If-Match": first}).status_code == 412
    assert http.delete(at, headers={"If-Match": first}).status_code == 412
    assert http.get("/api/v1/secrets").json()[0]["tag"] == second
    assert http.delete(at, headers={"If-Match": second}).status_code == 204
    assert http.put(at, content=b"a-third-value", headers={"If-None-Match": "*"}).status_code == 204
    assert http.get("/api/v1/secrets/NONE").status_code == 404


def test_a_blob_is_known_by_its_name(one: Served) -> None:
    one.keep_file(AttemptId("ran-1.1"), "a", b"bytes")
    sha256 = one.http().get("/api/v1/jobs/ran-1/artifacts").json()[0]["sha256"]
    tag = read(one, f"/blobs/{sha256}").headers["etag"]
    assert read(one, f"/blobs/{sha256}", tag).status_code == 304
    gone = f"/blobs/{'0' * 64}"
    assert read(one, gone, f'"{"0" * 64}"').status_code == 404


def test_a_refusal_has_no_tag(one: Served) -> None:
    answer = read(one, "/jobs/none-9", "*")
    assert (answer.status_code, "etag" in answer.headers) == (404, False)


def test_a_list_of_tags_is_read_as_one() -> None:
    tag = tag_of("a", 1)
    assert tag == tag_of("a", 1) != tag_of("a", "1")
    assert names(f' "x" ,W/{tag}', tag)
    assert not names("", tag)
    assert not names(tag.strip('"'), tag)


def test_that_a_node_gets_no_jobs_any_more_is_another_tag(one: Served) -> None:
    """Since teams are not said to trust each other, and it does not keep their jobs apart."""
    known = read(one, "/nodes/node-a").headers["etag"]
    with one.http() as http:
        for team in ("red", "blue"):
            assert http.post("/api/v1/teams", json={"team": team, "trusting": True}).status_code == 201
        assert read(one, "/nodes/node-a", known).status_code == 304
        assert http.put("/api/v1/organisation", json={"name": "Lab", "trusting": False}).status_code == 200
        answer = read(one, "/nodes/node-a", known)
        assert (answer.status_code, "--isolation uid" in answer.json()["exposed"]) == (200, True)
        stale = http.post("/api/v1/nodes/node-a/drain", json={"reason": "x"}, headers={"If-Match": known})
        assert stale.status_code == 412
        seen = {"If-Match": answer.headers["etag"]}
        assert http.post("/api/v1/nodes/node-a/drain", json={"reason": "x"}, headers=seen).status_code == 200
