"""Roles, scopes and teams of a real server: who may what, what is written down of it, and how often one may knock."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from phalanx.core.errors import RateLimited
from phalanx.operate.control.api.doors import Doors
from tests.operate.control.api.two_teams import Teams, two_teams
from tests.operate.control.live_server import LiveServer, until


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    live = LiveServer(tmp_path_factory.mktemp("may") / "home")
    live.start()
    yield two_teams(live)
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()


def audit(teams: Teams, **query: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = teams.server.get("/audit", **query)
    return rows


def refused(answer: httpx.Response, status: int, field: str) -> None:
    body = answer.json()
    assert (answer.status_code, body["field"], bool(body["fix"])) == (status, field, True), answer.text


def test_members_change_their_own_jobs_and_admins_of_the_team_all(teams: Teams) -> None:
    job = teams.submit("rob", name="robs")
    for user in ("ron", "rey"):
        with teams.http(user) as http:
            assert http.get(f"/jobs/{job}").json()["team"] == "red"
            refused(http.post(f"/jobs/{job}/pause"), 403, "role" if user == "rey" else "job")
    with teams.http("rob") as http:
        assert http.post(f"/jobs/{job}/pause").json()["state"] == "paused"
    with teams.http("rita") as http:
        assert http.post(f"/jobs/{job}/resume").status_code == 200
    with teams.http("ruth") as http:
        assert http.post(f"/jobs/{job}/cancel").json()["outcome"] == "cancelled"
    whose = [(row["by"], row["what"], row["outcome"]) for row in audit(teams, on=job)]
    assert whose == [
        ("rob", "job.submit", "done"), ("rob", "job.pause", "done"), ("rita", "job.resume", "done"), ("ruth", "job.cancel", "done"),
    ]  # fmt: skip
    assert teams.server.get(f"/jobs/{job}/events")[0]["body"]["by"] == "rob"


def test_what_changes_nothing_or_fails_leaves_no_row(teams: Teams) -> None:
    job = teams.submit("rob", name="twice")
    with teams.http("rob") as http:
        assert http.post(f"/jobs/{job}/cancel").status_code == 200
        assert http.post(f"/jobs/{job}/cancel").status_code == 409
        assert http.post("/jobs", json={"spec": {"name": "never", "entrypoint": "true", "after": ["none-1"]}}).status_code == 422
    assert [row["what"] for row in audit(teams, on=job)] == ["job.submit", "job.cancel"]
    assert audit(teams, on="") and not [row for row in audit(teams) if row["on"] == "" or "never" in row["on"]]


def test_a_token_bounds_its_owner(teams: Teams) -> None:
    spec = {"spec": {"name": "bounded", "entrypoint": "true"}}
    with teams.server.http(teams.token("rita", scope="read")) as http:
        refused(http.post("/jobs", json=spec), 403, "role")
        refused(http.put("/teams/red/members/rey", json={"role": "admin"}), 403, "role")
    with teams.server.http(teams.token("rita", scope="submit")) as http:
        job = http.post("/jobs", json=spec).json()["id"]
        assert http.post(f"/jobs/{job}/cancel").status_code == 200
        refused(http.put("/teams/red/members/rey", json={"role": "admin"}), 403, "role")
    with teams.server.http(teams.token("ruth", scope="read")) as http:
        assert http.get(f"/jobs/{job}").status_code == 200
        refused(http.post("/nodes/x/drain", json={"reason": "x"}), 403, "user")
        refused(http.post("/jobs", json=spec), 403, "role")
    with teams.server.http(teams.token("ruth", scope="admin", team="blue")) as http:
        assert http.get(f"/jobs/{job}").status_code == 404
        refused(http.get("/audit"), 403, "user")
        assert http.get("/whoami").json()["teams"] == {"blue": "admin"}


def test_a_token_makes_none_that_reaches_further(teams: Teams) -> None:
    def asked(token: str, **more: Any) -> httpx.Response:
        with teams.server.http(token) as http:
            return http.post("/tokens", json={"name": "more", **more})

    refused(asked(teams.token("rob")), 403, "scope")
    refused(asked(teams.tokens["rita"], user="rob"), 403, "user")
    refused(asked(teams.token("rita", scope="admin", team="red"), team="blue"), 403, "team")
    made = asked(teams.token("rita", scope="admin", team="red"), scope="admin").json()
    assert (made["view"]["team"], made["view"]["user"]) == ("red", "rita")
    refused(asked(teams.tokens["rita"], lifetime_ms=10**12), 422, "lifetime_ms")
    refused(asked(teams.tokens["rita"], scope="root"), 422, "scope")
    with teams.http("rob") as http:
        assert {one["user"] for one in http.get("/tokens").json()} == {"rob"}
        assert http.delete(f"/tokens/{made['view']['id']}").status_code == 404
    with teams.http("rita") as http:
        assert made["token"] not in http.get("/tokens").text
        assert http.delete(f"/tokens/{made['view']['id']}").status_code == 204
    with teams.server.http(made["token"]) as http:
        refused(http.get("/whoami"), 401, "Authorization")


def test_use_is_seen_in_the_list(teams: Teams) -> None:
    token = teams.token("ron", name="used")
    with teams.server.http(token) as http:
        until(lambda: next(one for one in http.get("/tokens").json() if one["name"] == "used")["used_ms"])


def test_one_more_team_is_refused_where_jobs_are_not_kept_apart(teams: Teams) -> None:
    with teams.server.http() as http:
        answer = http.post("/teams", json={"team": "green"})
        assert (answer.status_code, answer.json()["field"], answer.json()["value"]) == (409, "team", "green")
        assert "single trust domain" in answer.json()["fix"] and "--isolation uid" in answer.json()["fix"]
        assert "green" not in http.get("/teams").text


def test_a_team_is_led_by_its_own_admins(teams: Teams) -> None:
    with teams.http("rita") as http:
        assert http.put("/teams/red/members/noa", json={"role": "viewer"}).json()["members"]["noa"] == "viewer"
        roles = {one["user"]: one["teams"] for one in http.get("/users").json()}
        assert (roles["bea"], roles["rob"]) == ({}, {"red": "member"}), "of another team's people their names alone"
        hidden = http.put("/teams/blue/members/rita", json={"role": "admin"})
        assert (
            hidden.json()["title"] == "NotFound"
            and hidden.text.replace("blue", "none") == http.put("/teams/none/members/rita", json={"role": "admin"}).text
        )
        for body in ({"role": "root"}, {"role": ""}):
            assert http.put("/teams/red/members/rey", json=body).status_code == 422
        refused(http.post("/teams", json={"team": "green"}), 403, "user")
    with teams.http("noa") as http:
        assert (http.get("/whoami").json()["teams"], http.get("/jobs").status_code) == ({"red": "viewer"}, 200)
    with teams.http("rita") as http:
        assert http.delete("/teams/red/members/noa").status_code == 204
    with teams.http("noa") as http:
        refused(http.get("/jobs"), 403, "user")
        assert "phalanx team add" in http.get("/jobs").json()["fix"]
        assert http.get("/whoami").json()["teams"] == {}


def test_a_queue_is_its_teams(teams: Teams) -> None:
    queues = {"crimson": {"team": "red", "quota": {"*": 1}}, "scarlet": {"parent": "crimson"}, "navy": {"team": "blue"}, "all": {}}
    with teams.http("ruth") as http:
        assert http.put("/policy", json={"policy": {"queues": queues}}).status_code == 200
        mixed = {"queues": {"a": {"team": "red"}, "b": {"parent": "a", "team": "blue"}}}
        refused(http.put("/policy", json={"policy": mixed}), 422, "queues.b.team")
        assert set(http.get("/policy").json()["policy"]["queues"]) == set(queues)

    def submitted(user: str, queue: str) -> httpx.Response:
        with teams.http(user) as http:
            answer = http.post("/jobs", json={"spec": {"name": "queued", "entrypoint": "true", "queue": queue}})
            if answer.status_code == 201:
                http.post(f"/jobs/{answer.json()['id']}/cancel")
            return answer

    for queue, status in (("scarlet", 201), ("all", 201), ("default", 201), ("navy", 422)):
        assert submitted("rob", queue).status_code == status, queue
    hidden, unknown = submitted("rob", "navy").json(), submitted("rob", "nave").json()
    assert (hidden["fix"], "navy" in unknown["fix"], "did you mean" in unknown["fix"]) == (unknown["fix"], False, False)
    with teams.http("rita") as http:
        view = http.get("/policy").json()["policy"]["queues"]
        assert (set(view), view["crimson"]["quota"]) == ({"crimson", "scarlet", "all"}, {"*": 1})
        until(lambda: {one["name"] for one in http.get("/queues").json()} >= {"crimson", "scarlet", "all"})
        assert "navy" not in [one["name"] for one in http.get("/queues").json()]
        hidden, unknown = http.get("/queues/navy"), http.get("/queues/nave")
        assert (hidden.status_code, hidden.text.replace("navy", "nave")) == (404, unknown.text)
        assert http.get("/queues/scarlet").json()["parent"] == "crimson"
        assert {one["queue"] for one in http.get("/quotas").json()} == {"crimson"}
    with teams.http("bea") as http:
        assert http.get("/quotas").json() == []
    with teams.http("ruth") as http:
        http.put("/policy", json={"policy": {}})


def test_secrets_of_one_name_are_each_teams_own(teams: Teams) -> None:
    for user, value in (("rob", "red-canary"), ("bea", "blue-canary")):
        with teams.http(user) as http:
            assert http.put("/secrets/KEY", content=value).status_code == 204
    with teams.http("rey") as http:
        refused(http.get("/secrets"), 403, "role")
    with teams.http("bea") as http:
        assert [(one["name"], one["team"]) for one in http.get("/secrets").json()] == [("KEY", "blue")]
        assert http.delete("/secrets/KEY").status_code == 204
    with teams.http("ruth") as http:
        assert [(one["name"], one["team"]) for one in http.get("/secrets").json()] == [("KEY", "red")]
        assert http.delete("/secrets/KEY").status_code == 404, "the platform has none of its own"
        assert http.delete("/secrets/KEY", params={"team": "red"}).status_code == 204
    said = [(row["by"], row["what"], row["on"]) for row in audit(teams, what="secret")]
    assert said == [
        ("rob", "secret.set", "red/KEY"), ("bea", "secret.set", "blue/KEY"), ("bea", "secret.remove", "blue/KEY"),
        ("ruth", "secret.remove", "red/KEY"),
    ]  # fmt: skip
    rows = str(audit(teams))
    assert "canary" not in rows and "phx_" not in rows and teams.server.token() not in rows


def test_a_secret_changed_meanwhile_is_kept_in_each_team(teams: Teams) -> None:
    """Tags are of a team's own value: another team's is no match."""
    tags = {}
    for user in ("rob", "bea"):
        with teams.http(user) as http:
            assert http.put("/secrets/TAGGED", content=user, headers={"If-None-Match": "*"}).status_code == 204
            tags[user] = http.get("/secrets/TAGGED").headers["etag"]
    with teams.http("bea") as http:
        assert http.put("/secrets/TAGGED", content="x", headers={"If-Match": tags["rob"]}).status_code == 412
        assert http.delete("/secrets/TAGGED", headers={"If-Match": tags["rob"]}).status_code == 412
        refused(http.get("/secrets/TAGGED", params={"team": "red"}), 422, "team")
        assert http.delete("/secrets/TAGGED", headers={"If-Match": tags["bea"]}).status_code == 204
        assert http.get("/secrets/TAGGED").status_code == 404, "the red team's is none of theirs"
    with teams.http("rob") as http:
        assert http.delete("/secrets/TAGGED", headers={"If-Match": tags["rob"]}).status_code == 204


def test_nobody_hears_that_nothing_changed_of_what_they_saw_with_other_roles(teams: Teams) -> None:
    def policy(known: str = "") -> httpx.Response:
        with teams.http("noa") as http:
            return http.get("/policy", headers={"If-None-Match": known} if known else {})

    tags: list[str] = []
    with teams.http("ruth") as http:
        for change in (("PUT", "red"), ("PUT", "blue"), ("DELETE", "red")):
            body = {"role": "viewer"} if change[0] == "PUT" else None
            assert http.request(change[0], f"/teams/{change[1]}/members/noa", json=body).is_success
            assert all(policy(tag).status_code == 200 for tag in tags)
            tags.append(policy().headers["etag"])
            again = policy(tags[-1])
            assert (again.status_code, again.headers["vary"], again.content) == (304, "Authorization", b"")
        assert policy().headers["vary"] == "Authorization"
        http.delete("/teams/blue/members/noa")
    assert policy(tags[-1]).status_code == 403


@pytest.mark.parametrize("of", ["events", "logs"])
def test_a_stream_ends_with_its_readers_token(teams: Teams, of: str) -> None:
    with teams.server.http() as http:
        made = http.post("/tokens", json={"name": "stream", "user": "rey", "scope": "read"}).json()
    job = teams.submit("rob", name="watched")
    with teams.server.http(made["token"]) as reader, reader.stream("GET", f"/jobs/{job}/{of}/stream") as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": ping"
        with teams.server.http() as http:
            assert http.delete(f"/tokens/{made['view']['id']}").status_code == 204
        *_, last = [line for line in lines if line]
        assert "does not open it any more" in last
    with teams.http("rob") as http:
        http.post(f"/jobs/{job}/cancel")


def test_lists_of_people_come_in_pages(teams: Teams) -> None:
    with teams.http("ruth") as http:
        for path in ("/users", "/tokens", "/teams", "/audit"):
            whole, found = http.get(path).json(), []
            answer = http.get(path, params={"limit": 1 if path == "/teams" else 3})
            while True:
                found += answer.json()
                if "next" not in answer.links or len(found) >= len(whole):
                    break
                answer = http.get(f"{teams.server.url}{answer.links['next']['url']}")
            assert len(whole) > 1 and [one | {"used_ms": 0} for one in found[: len(whole)]] == [
                one | {"used_ms": 0} for one in whole
            ]


def test_refused_attempts_are_written_down(teams: Teams) -> None:
    with teams.http("rob") as http:
        assert http.post("/gc", json={}).status_code == 403
    with teams.server.http("phx_stolen-canary") as http:
        assert http.get("/jobs").status_code == 401
    mine = until(lambda: audit(teams, what="refused", by="rob"))[-1]
    assert (mine["what"], mine["on"], mine["outcome"], mine["address"]) == ("refused.post", "/api/v1/gc", "refused", "127.0.0.1")
    nobody = until(lambda: audit(teams, what="refused", by="?"))[-1]
    assert (nobody["token"], "canary" in str(nobody)) == ("", False)


def test_a_flood_of_refusals_is_put_off_and_a_right_token_passes(teams: Teams) -> None:
    with teams.server.http("wrong") as http:
        answer = next(one for one in (http.get("/status") for _ in range(5_000)) if one.status_code != 401)
        assert (answer.status_code, answer.json()["title"]) == (429, "RateLimited")
        assert answer.headers["content-type"] == "application/problem+json" and int(answer.headers["retry-after"]) >= 1
    with teams.http("rey") as http:
        assert http.get("/status").status_code == 200
    assert teams.server.get("/status")["jobs"]
    assert len(audit(teams, what="refused")) < 300


def test_a_token_that_asks_too_often_is_put_off_alone() -> None:
    doors = Doors(requests=(1.0, 2.0), failures=(1.0, 1.0))
    doors.pace("a", 5.0)
    doors.pace("a", 5.0)
    with pytest.raises(RateLimited) as put_off:
        doors.pace("a", 5.5)
    assert put_off.value.retry_after_s == 0.5
    doors.pace("b", 5.5)
    doors.pace("a", 6.0)
    assert doors.failure("10.0.0.1", 5.0) is None and doors.failure("10.0.0.2", 5.0) is None
    assert doors.failure("10.0.0.1", 5.0) is not None
    assert [doors.is_first_use("a", at_ms, 100) for at_ms in (0, 0, 99, 100, 150)] == [True, False, False, True, False]


def test_only_who_sees_everything_is_told_where_the_database_lies(teams: Teams) -> None:
    with teams.http("rita") as http:
        shown = http.get("/status").json()
        assert (shown["home"], shown["database"], str(teams.server.home) in http.get("/status").text) == ("", "", False)
    assert str(teams.server.home) in teams.server.get("/status")["database"]
