"""Every route of the application, told by the application itself: what it wants, and that it is not to be had without."""

import functools
import hashlib
import json
import re
import socket
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.routing import Route, WebSocketRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from phalanx.core.errors import Bug
from phalanx.operate.control.api.access import READS, SUBMITS, authorities
from phalanx.operate.control.api.application import create_app
from tests.operate.control.api.two_teams import Teams, two_teams
from tests.operate.control.live_server import LiveServer, PlayedAgent, until

SHA = hashlib.sha256(b"red's").hexdigest()
OPEN = {"anybody, without a token"}
OF_ANYBODY = ("/api/v1/oidc/login",)
"""Whose body is looked at, since no token is."""

IN_A_JOB = "who may change the job, by the socket's own check"
APART = {"a join token", "a node, by the socket's own check", IN_A_JOB, *OPEN}


def declared() -> list[tuple[str, str, str]]:
    """(method, path, what it wants); of a socket the method is WS."""
    found = []
    for route, path, wanted in authorities(create_app(cast(Any, None)).routes):
        methods = sorted(getattr(route, "methods", None) or ["WS"])
        found += [(method, path, wanted) for method in methods]
    return found


ROUTES = declared()
HTTP = [one for one in ROUTES if one[0] != "WS"]


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    live = LiveServer(tmp_path_factory.mktemp("routes") / "home")
    live.start()
    yield two_teams(live)
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()


@pytest.fixture(scope="module")
def red(teams: Teams) -> Iterator[str]:
    """A job of the red team's that runs on the one node, with an artifact's bytes and a secret."""
    with PlayedAgent(teams.server) as agent, teams.http("rob") as http:
        agent.hello()
        assert http.put(f"/blobs/{SHA}", content=b"red's").status_code == 204
        assert http.put("/secrets/RED_KEY", content=b"tiger-canary").status_code == 204
        answer = http.post("/jobs", json={"spec": {"name": "ours", "entrypoint": "true"}, "code": SHA})
        job = str(answer.json()["id"])
        agent.started()
        until(lambda: teams.server.get(f"/jobs/{job}")["state"] == "running")
        yield job


def filled(path: str, job: str) -> str:
    fill = {"{job}": job, "{sha256}": SHA, "{name}": "RED_KEY", "{version}": "1", "{node}": "node-a", "{team}": "red"}
    fill |= {"{queue}": "none", "{delivery}": "1"}
    fill |= {"{user}": "rob", "{token}": "0" * 12, "{attempt}": f"{job}.1"}
    return functools.reduce(lambda text, pair: text.replace(*pair), fill.items(), path)


def test_the_application_has_routes_of_each_kind_and_all_declare_what_they_want() -> None:
    assert len(ROUTES) > 50 and "WS" in {method for method, _, _ in ROUTES}
    assert [path for _, path, wanted in ROUTES if wanted in OPEN] == ["/api/v1/oidc", "/api/v1/oidc/login", "/healthz"]
    assert {wanted for _, _, wanted in ROUTES} == {
        "somebody", "reads", "submits", "leads", "rules", "nodes", "reads or nodes", *APART,
    }  # fmt: skip
    assert all(isinstance(route, Route | WebSocketRoute) for route, _, _ in authorities(create_app(cast(Any, None)).routes))


@pytest.mark.parametrize("dependencies", [[], [READS, SUBMITS]])
def test_a_route_without_one_authority_is_not_served(dependencies: list[Any]) -> None:
    app, router = FastAPI(openapi_url=None, docs_url=None, redoc_url=None), APIRouter()

    @router.get("/new", dependencies=dependencies)
    async def new() -> str:
        return "everything"

    app.include_router(router, prefix="/api/v1")
    with pytest.raises(Bug, match=r"/api/v1/new declares \d"):
        list(authorities(app.routes))
    socket = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    socket.add_api_websocket_route("/ws", new)
    with pytest.raises(Bug, match="/ws declares 0"):
        list(authorities(socket.routes))


@pytest.mark.parametrize(("method", "path", "wanted"), [one for one in HTTP if one[2] not in OPEN])
def test_no_route_answers_without_a_known_token(teams: Teams, red: str, method: str, path: str, wanted: str) -> None:
    for headers in ({}, {"Authorization": "Bearer phx_wrong"}):
        answer = httpx.request(method, f"{teams.server.url}{filled(path, red)}", headers=headers, trust_env=False, verify=False)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(("method", "path", "wanted"), [one for one in HTTP if one[2] not in APART])
def test_no_route_answers_who_may_not(teams: Teams, red: str, method: str, path: str, wanted: str) -> None:
    """Whoever has no role, and a node, or a person where nodes alone may."""
    without = {"somebody": [], "nodes": ["noa", "ruth"]}.get(wanted, ["noa"])
    if wanted in ("submits", "leads", "rules"):
        without += ["rey"]
    if wanted in ("leads", "rules"):
        without += ["rob"]
    if wanted == "rules":
        without += ["rita"]
    tokens = [teams.tokens[user] for user in without]
    if wanted not in ("nodes", "reads or nodes"):
        tokens.append(teams.server.token("node-token"))
    for token in tokens:
        url, headers = f"{teams.server.url}{filled(path, red)}", {"Authorization": f"Bearer {token}"}
        answer = httpx.request(method, url, headers=headers, trust_env=False, verify=False)
        assert answer.status_code in (403, 404), answer.text
        assert method == "HEAD" or answer.json()["fix"]


def test_no_route_takes_a_write_from_another_sites_page(teams: Teams) -> None:
    """With the token of who may everything, by each route that is not for reading alone; from the server's own page it is heard."""
    writes = [(method, path) for method, path, _ in HTTP if method not in ("GET", "HEAD")]
    assert {method for method, _ in writes} >= {"POST", "PUT", "DELETE"} and len(writes) > 25
    with teams.http("ruth") as ruth, teams.server.http("phx_wrong") as stranger:
        for method, path in writes:
            url = f"{teams.server.url}{filled(path, 'none-1')}"
            for origin in ("https://evil.example", "null", "http://127.0.0.1:1", f"{teams.server.url}.evil.example"):
                answer = ruth.request(method, url, headers={"Origin": origin})
                assert (answer.status_code, answer.json()["field"]) == (403, "Origin"), (method, path, origin)
            own = stranger.request(method, url, headers={"Origin": teams.server.url})
            assert own.status_code != 403, (method, path)


def test_no_route_answers_under_another_machines_name(teams: Teams) -> None:
    """As a page does that was loaded from a name which means this machine a moment later; sockets too."""
    with teams.http("ruth") as ruth, teams.server.http("phx_wrong") as stranger:
        for method, path, _ in HTTP:
            url = f"{teams.server.url}{filled(path, 'none-1')}"
            answer = ruth.request(method, url, headers={"Host": f"evil.example:{teams.server.url.rpartition(':')[2]}"})
            assert answer.status_code == 400 and (method == "HEAD" or answer.json()["field"] == "Host"), (method, path)
            assert stranger.request(method, url, headers={"Host": "localhost"}).status_code != 400 or path in OF_ANYBODY
    for path in (path for method, path, _ in ROUTES if method == "WS"):
        here, port = teams.server.url.removeprefix("http://").split(":")
        token = {"Authorization": f"Bearer {teams.server.token('node-token')}"}
        for host, origin in (("evil.example", None), (here, "http://evil.example")):
            url = f"ws://{host}:{port}{filled(path, 'none-1').replace('{channel}', '0' * 32)}"
            with pytest.raises(InvalidStatus) as refused, socket.create_connection((here, int(port))) as line:
                connect(url, sock=line, origin=Origin(origin) if origin else None, additional_headers=token, proxy=None)
            assert refused.value.response.status_code == 403, (path, host, origin)


ONE_JOB = [one for one in HTTP if "{job}" in one[1]]
BODIES: dict[str, Any] = {"chaos": {"fault": "kill"}, "profile": {"steps": 1}}


@pytest.mark.parametrize(("method", "path", "wanted"), ONE_JOB)
def test_another_teams_job_is_answered_in_the_words_of_none(teams: Teams, red: str, method: str, path: str, wanted: str) -> None:
    """By an admin of the other team, with everything else right."""
    query = {"name": "x"} if path.endswith("/artifact") else {}
    body = BODIES.get(path.rpartition("/")[2]) if method == "POST" else None
    said = []
    with teams.http("bea") as http:
        for job in (red, "none-1"):
            answer = http.request(method, f"{teams.server.url}{filled(path, job)}", params=query, json=body)
            assert answer.status_code == 404, answer.text
            said.append(answer.text.replace(job, "JOB"))
    assert said[0] == said[1]
    with (
        teams.http("rey") as http,
        http.stream(method, f"{teams.server.url}{filled(path, red)}", params=query, json=body) as answer,
    ):
        if path.endswith("/stream"):
            assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
        else:
            assert b"there is no such job" not in answer.read(), "who may look is told of it, and changes nothing"


def test_what_is_not_under_a_job_is_hidden_too(teams: Teams, red: str) -> None:
    none = "0" * 64
    with teams.http("bea") as http:
        for path, other in ((f"/blobs/{SHA}", f"/blobs/{none}"), (f"/ledger?job={red}", "/ledger?job=none-1")):
            hidden, unknown = http.get(path), http.get(other)
            assert (hidden.status_code, hidden.text.replace(SHA, none).replace(red, "none-1")) == (404, unknown.text)
        assert http.head(f"/blobs/{SHA}").status_code == http.head(f"/blobs/{none}").status_code == 404
        assert (http.get("/jobs").json(), http.get("/events").json(), http.get("/secrets").json()) == ([], [], [])
        assert http.delete("/secrets/RED_KEY").status_code == 404
        assert http.delete("/secrets/RED_KEY", params={"team": "red"}).status_code == 422
        status = http.get("/status").json()
        assert (status["jobs"], status["home"], status["processes"]) == ({}, "", {})
        assert red not in http.get("/status").text and red not in http.get("/nodes").text
        assert set(http.get("/nodes").json()[0]["held"].values()) == {"another team's job"}
        assert sum(http.get("/ledger").json()["categories"].values()) == 0
    with teams.http("rey") as http:
        assert [one["id"] for one in http.get("/jobs").json()] == [red]
        assert {one["job"] for one in http.get("/events").json()} == {red}
        assert http.get(f"/blobs/{SHA}").content == b"red's"
        assert http.get("/status").json()["jobs"] == {"running": 1}
        assert http.get("/ledger").json()["capacity"] > 0


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"after": ["{red}"]}, "after"),
        ({"secrets": ["RED_KEY"]}, "secrets"),
        ({"team": "red"}, "team"),
        ({"checkpoint": {"store": "{home}/jobs/{red}/checkpoints"}}, "checkpoint.store"),
        ({"hyperparameters": {"init": "{home}/jobs/{red}/models/1"}}, "hyperparameters.init"),
        ({"hyperparameters": {"init": "{home}/jobs/../token"}}, "hyperparameters.init"),
        ({"hyperparameters": {"init": "file://{home}/jobs/{red}"}}, "hyperparameters.init"),
    ],
)
def test_a_spec_reaches_nothing_of_another_team(teams: Teams, red: str, spec: dict[str, Any], field: str) -> None:
    def said(job: str, team: str) -> str:
        text = httpx.Response(200, json={**spec, "name": "theirs", "entrypoint": "true"}).text
        text = text.replace("{red}", job).replace("{home}", str(teams.server.home)).replace('"team":"red"', f'"team":"{team}"')
        with teams.http("bea") as http:
            answer = http.post("/jobs", content=f'{{"spec": {text}}}', headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
        return re.sub(rf"\b({job}|{team})\b", "NAME", answer.text)

    assert said(red, "red") == said("none-1", "green")


def test_known_bytes_are_not_had_for_their_hash(teams: Teams, red: str) -> None:
    body = {"spec": {"name": "theirs", "entrypoint": "true"}, "code": SHA}
    with teams.http("bea") as http:
        refused = http.post("/jobs", json=body)
        assert (refused.status_code, refused.json()["field"]) == (422, "code")
        assert http.put(f"/blobs/{SHA}", content=b"red's").status_code == 204
        assert http.head(f"/blobs/{SHA}").status_code == 200
        answer = http.post("/jobs", json=body)
        assert answer.status_code == 201
        http.post(f"/jobs/{answer.json()['id']}/cancel")


def test_a_key_of_one_team_finds_no_job_of_another(teams: Teams, red: str) -> None:
    body = {"spec": {"name": "keyed", "entrypoint": "true"}, "key": "the-same"}
    with teams.http("rob") as http:
        first = http.post("/jobs", json=body).json()["id"]
        assert http.post("/jobs", json=body).json()["id"] == first
    with teams.http("bea") as http:
        second = http.post("/jobs", json=body)
        assert (second.status_code, second.json()["team"]) == (201, "blue") and second.json()["id"] != first
        http.post(f"/jobs/{second.json()['id']}/cancel")
    with teams.http("rob") as http:
        http.post(f"/jobs/{first}/cancel")


def rows(teams: Teams, user: str, path: str, **query: Any) -> list[dict[str, Any]]:
    """Of all pages of a list, two rows at a time."""
    found: list[dict[str, Any]] = []
    with teams.http(user) as http:
        answer = http.get(path, params={"limit": 2, **query})
        found += answer.json()
        while "next" in answer.links:
            answer = http.get(f"{teams.server.url}{answer.links['next']['url']}")
            found += answer.json()
    assert answer.status_code == 200, answer.text
    return found


def test_lists_are_cut_into_pages_of_what_is_theirs(teams: Teams, red: str) -> None:
    """Jobs of both teams lie in turn: a page that was cut before it was filtered would be short, or lead nowhere."""
    mine: dict[str, list[str]] = {"red": [], "blue": []}
    for at in range(5):
        mine["red"].append(teams.submit("rob", name=f"r{at}"))
        mine["blue"].append(teams.submit("bea", name=f"b{at}"))
    for user, team in (("rey", "red"), ("bea", "blue")):
        assert [one["id"] for one in rows(teams, user, "/jobs")][:5] == mine[team][::-1]
        assert {one["job"] for one in rows(teams, user, "/events")} >= set(mine[team])
        other = mine["blue" if team == "red" else "red"]
        assert not {one["job"] for one in rows(teams, user, "/events")} & set(other)
    own = {user: {one["id"] for one in rows(teams, user, "/jobs")} for user in ("rey", "bea")}
    assert red in own["rey"] and not own["rey"] & own["bea"]
    for user, seen in own.items():
        assert {one["run"] for one in rows(teams, user, "/runs")} <= seen
        by_job = rows(teams, user, "/usage", by="job")
        assert {one["name"] for one in by_job} <= seen
        assert sum(one["attempts"] for one in rows(teams, user, "/usage")) == sum(one["attempts"] for one in by_job)
    assert red in {one["run"] for one in rows(teams, "rey", "/runs")} & {
        one["name"] for one in rows(teams, "rey", "/usage", by="job")
    }
    with teams.http("bea") as http:
        assert red not in http.get("/usage", params={"by": "job", "format": "csv"}).text
        node = http.get("/nodes/node-a")
        assert "another team's job" in node.json()["held"].values() and red not in node.text
    with teams.http("rey") as http:
        theirs = http.get("/nodes/node-a")
        assert f"{red}.1" in theirs.json()["held"].values()
        assert theirs.headers["etag"] != node.headers["etag"]
        assert http.get("/nodes/node-a", headers={"If-None-Match": node.headers["etag"]}).status_code == 200
    for user, jobs in (("rob", mine["red"]), ("bea", mine["blue"])):
        with teams.http(user) as http:
            for job in jobs:
                assert http.post(f"/jobs/{job}/cancel").status_code == 200


def test_a_stream_of_events_has_their_own_jobs_alone(teams: Teams, red: str) -> None:
    """From the beginning of the log, which the red team wrote most of, to a job of the blue team's."""
    job = teams.submit("bea", name="last")
    with teams.http("bea") as http, http.stream("GET", "/events/stream", params={"after": 0}) as answer:
        seen = []
        for line in answer.iter_lines():
            assert red not in line, "not even as what a job waits for"
            if line.startswith("data: "):
                seen.append(json.loads(line[6:])["job"])
                if seen[-1] == job:
                    break
    of_blue = {one["id"] for one in rows(teams, "bea", "/jobs")}
    assert set(seen) <= of_blue
    with teams.http("bea") as http:
        http.post(f"/jobs/{job}/cancel")


def test_a_stream_that_goes_on_has_their_own_jobs_alone(teams: Teams, red: str) -> None:
    """Of the end of the log, which is kept in memory for all who read it."""
    with teams.http("bea") as http, http.stream("GET", "/events/stream") as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": ping"
        hidden, job = teams.submit("rob", name="hidden"), teams.submit("bea", name="seen")
        for line in lines:
            assert hidden not in line
            if line.startswith("data: ") and json.loads(line[6:])["job"] == job:
                break
    for user, one in (("rob", hidden), ("bea", job)):
        with teams.http(user) as http:
            http.post(f"/jobs/{one}/cancel")


def test_a_delivery_is_its_jobs(teams: Teams, red: str) -> None:
    job = teams.submit("rob", name="told", notify={"webhook": "https://hooks.invalid/secret-path", "on": ["finished"]})
    with teams.http("rob") as http:
        http.post(f"/jobs/{job}/cancel")
    number = until(lambda: rows(teams, "rey", "/webhooks/deliveries"))[0]["id"]
    assert rows(teams, "bea", "/webhooks/deliveries") == []
    with teams.http("bea") as http:
        hidden = http.post(f"/webhooks/deliveries/{number}/redeliver")
        unknown = http.post("/webhooks/deliveries/999/redeliver")
        assert (hidden.status_code, hidden.text.replace(str(number), "999")) == (404, unknown.text)
    for user, status in (("rey", 403), ("ron", 403), ("rob", 202), ("rita", 202)):
        with teams.http(user) as http:
            assert http.post(f"/webhooks/deliveries/{number}/redeliver").status_code == status, user
    said = [(one["by"], one["on"]) for one in teams.server.get("/audit", what="webhook.redeliver")]
    assert said == [("rob", job), ("rita", job)]


def test_a_socket_wants_a_node(teams: Teams) -> None:
    sockets = [path for method, path, _ in ROUTES if method == "WS"]
    assert sockets == ["/api/v1/agent", "/api/v1/jobs/{job}/channel", "/api/v1/agent/channels/{channel}"]
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {teams.tokens['ruth']}"}):
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws{teams.server.url.removeprefix('http')}{sockets[0]}", additional_headers=headers, proxy=None)
        assert refused.value.response.status_code == 403
        with pytest.raises(InvalidStatus) as refused:
            path = sockets[2].replace("{channel}", "0" * 32)
            connect(f"ws{teams.server.url.removeprefix('http')}{path}", additional_headers=headers, proxy=None)
        assert refused.value.response.status_code == 403


def into(teams: Teams, user: str, job: str) -> tuple[int, bytes]:
    """What the door of a job's channel answers."""
    url = f"ws{teams.server.url.removeprefix('http')}/api/v1/jobs/{job}/channel?what=exec&argv=true"
    headers = {"Authorization": f"Bearer {teams.tokens.get(user, user)}"}
    with pytest.raises(InvalidStatus) as refused:
        connect(url, additional_headers=headers, proxy=None)
    return refused.value.response.status_code, bytes(refused.value.response.body or b"")


def test_into_a_job_comes_who_may_change_it(teams: Teams, red: str) -> None:
    """Those who may are told that the played agent knows no such way."""
    assert into(teams, "phx_wrong", red)[0] == 401
    hidden, unknown = into(teams, "bea", red), into(teams, "bea", "none-1")
    assert (hidden[0], hidden[1].replace(red.encode(), b"none-1")) == (404, unknown[1])
    assert {user: into(teams, user, red)[0] for user in ("noa", "rey", "ron", "rob", "rita", "ruth")} == {
        "noa": 404, "rey": 403, "ron": 403, "rob": 409, "rita": 409, "ruth": 409,
    }  # fmt: skip
