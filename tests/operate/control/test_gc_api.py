"""Garbage collection over HTTP: who may begin one, what is refused, how its end is seen, and what a collected job answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.storage.hashes import sha256_bytes
from tests.operate.control.live_server import LiveServer, PlayedAgent, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("gc") / "home")
    live.start()
    yield live
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()


def collected(server: LiveServer, **request: Any) -> Any:
    with server.http() as http:
        answer = http.post("/gc", json=request)
    assert answer.status_code == 202, answer.text
    assert answer.json()["state"] == "running"
    return until(lambda: (view := server.get("/gc"))["state"] != "running" and view)


def test_only_the_admin_may_collect(server: LiveServer) -> None:
    with server.http(server.token("node-token")) as http:
        assert (http.post("/gc", json={}).status_code, http.get("/gc").status_code) == (403, 403)
    with server.http("nobody") as http:
        assert http.post("/gc", json={}).status_code == 401


@pytest.mark.parametrize("older_than", ["", "soon", "-1d", "1w", "30", "30 d x"])
def test_a_limit_that_is_no_duration_is_named(server: LiveServer, older_than: str) -> None:
    with server.http() as http:
        answer = http.post("/gc", json={"older_than": older_than})
    assert answer.status_code == 422
    assert answer.json()["field"] == "older_than"


def test_a_collected_job_keeps_its_rows_and_says_what_became_of_its_files(server: LiveServer) -> None:
    with PlayedAgent(server) as agent:
        agent.hello()
        job = server.submit(name="left", resources={"gpus": "1"})
        launch = agent.started()
        agent.ship("log", launch.attempt, 0, 0, b"said\n")
        agent.report(launch, server.get("/status")["epoch"], "ended", {0: 0})
        until(lambda: server.get(f"/jobs/{job}")["state"] == "finished")
    until(lambda: server.get("/status")["outbox"] == 0)
    assert server.get(f"/jobs/{job}/logs")["text"] == "said\n"
    planned = collected(server, older_than="0s", dry_run=True)
    assert (planned["dry_run"], planned["jobs"]) == (True, [job])
    assert server.get(f"/jobs/{job}/logs")["text"] == "said\n"
    assert collected(server)["jobs"] == []  # 30 days, when nothing is said
    done = collected(server, older_than="0s")
    assert (done["state"], done["jobs"], done["problems"]) == ("done", [job], [])
    assert {one["kind"]: one["count"] for one in done["taken"]}["logs"] == 1
    view = server.get(f"/jobs/{job}")
    assert view["collected_ms"] is not None
    assert view["attempts"][0]["attempt"] == launch.attempt
    assert server.get(f"/jobs/{job}/events")[-1]["kind"] == "job_collected"
    assert "unmeasured" in " ".join(server.get("/ledger")["notes"])
    assert server.get("/ledger")["balanced"]
    with server.http() as http:
        for path in ("logs", "steps"):
            answer = http.get(f"/jobs/{job}/{path}")
            assert answer.status_code == 404
            assert "were collected on 2" in answer.json()["detail"]


def test_a_server_that_starts_again_knows_what_was_collected(tmp_path: Path) -> None:
    live = LiveServer(tmp_path / "home")
    live.start()
    try:
        with live.http() as http:
            assert http.get("/gc").status_code == 404
            http.put(f"/blobs/{sha256_bytes(b'code')}", content=b"code")
        with PlayedAgent(live) as agent:
            agent.hello()
            job = live.submit(name="once", resources={"gpus": "1"})
            agent.report(agent.started(), live.get("/status")["epoch"], "ended", {0: 1})
            until(lambda: live.get(f"/jobs/{job}")["state"] in ("finished", "pending"))
            with live.http() as http:
                http.post(f"/jobs/{job}/cancel")
            until(lambda: live.get(f"/jobs/{job}")["state"] == "finished")
        until(lambda: live.get("/status")["outbox"] == 0)
        (live.home / "jobs" / job).mkdir()
        (live.home / "jobs" / job / "notes").write_text("x")
        assert collected(live, older_than="0s")["jobs"] == [job]
        assert live.end() == 0
        live.start()
        with live.http() as http:
            refused = http.post(f"/jobs/{job}/retry")
        assert refused.status_code == 409
        assert "its files were collected on" in refused.json()["detail"]
        assert live.get(f"/jobs/{job}")["collected_ms"] is not None
    finally:
        live.end()
