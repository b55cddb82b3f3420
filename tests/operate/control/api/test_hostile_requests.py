"""What somebody may send who has a token, or none: each is one refusal that names what is wrong, and no fault of the server."""

import json
import re
import subprocess
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from phalanx.core.ids import AttemptId
from phalanx.core.messages import AttemptReport, RankExit
from phalanx.core.spec_parse import BOUNDS
from phalanx.operate.control.api.access import authorities
from phalanx.operate.control.api.application import create_app
from phalanx.operate.control.api.logs import log_page
from phalanx.storage.hashes import sha256_bytes
from tests.operate.control.control_bench import a_spec
from tests.operate.control.served import HOST, Served, served

JSON = {"Content-Type": "application/json"}
PAGE = b"<script>alert(document.domain)</script>"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With two teams that do not trust each other, and a member of one of them."""
    with served(tmp_path_factory.mktemp("hostile") / "home") as one:
        http = one.http()
        for team in ("red", "blue"):
            assert http.post("/api/v1/teams", json={"team": team, "trusting": True}).status_code == 201
        assert http.put("/api/v1/organisation", json={"name": "Lab", "trusting": False}).status_code == 200
        assert http.post("/api/v1/users", json={"user": "bea"}).status_code == 201
        assert http.put("/api/v1/teams/blue/members/bea", json={"role": "member"}).status_code == 200
        yield one


@pytest.fixture(scope="module")
def bea(one: Served) -> TestClient:
    """A member of team blue."""
    answer = one.http().post("/api/v1/tokens", json={"name": "t", "user": "bea", "scope": "submit"})
    return one.http(str(answer.json()["token"]))


@pytest.fixture(scope="module")
def ran(one: Served) -> AttemptId:
    """With an artifact, and a log that is a page."""
    attempt = one.run()
    one.write_log(attempt, PAGE)
    one.keep_file(attempt, "right.html", PAGE)
    return attempt


def submitted(http: TestClient, **spec: Any) -> tuple[int, str]:
    """The status, and the field that is refused."""
    answer = http.post("/api/v1/jobs", json={"spec": {"name": "x", "entrypoint": "true", **spec}})
    assert answer.status_code in (201, 422), answer.text
    assert len(answer.content) < 10_000
    return answer.status_code, str(answer.json().get("field", ""))


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "http://a]b", "//", "null", f"http://{HOST}@evil", f"http://{HOST}.", ""]
)
def test_an_origin_that_is_no_address_is_a_foreign_one(one: Served, origin: str) -> None:
    """Without any token: such a request was a fault of the server, with a traceback in its log."""
    nobody = TestClient(one.app, f"http://{HOST}")
    answer = nobody.delete("/api/v1/tokens/x", headers={"Origin": origin})
    assert (answer.status_code, answer.json()["field"]) == (403, "Origin")
    assert nobody.delete("/api/v1/tokens/x", headers={"Origin": f"http://{HOST}"}).status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"{HOST}@evil.example",
        f"evil.example@{HOST}",
        f"{HOST}#evil",
        f"{HOST}/x",
        f"{HOST}:80:80",
        "[",
        "[::1",
        f"{HOST}.",
    ],
)
def test_a_host_that_is_not_the_servers_own_is_refused(one: Served, host: str) -> None:
    answer = one.http().get("/api/v1/jobs", headers={"Host": host})
    assert (answer.status_code, answer.json()["field"]) == (400, "Host")
    assert one.http().get("/api/v1/jobs", headers={"Host": f"{HOST.upper()}:80"}).status_code == 200


def test_no_answer_is_ever_a_page(one: Served, ran: AttemptId) -> None:
    """Names, log lines and artifacts are somebody's: a browser that is led to them shows nothing, and runs nothing."""
    http, job = one.http(), one.job_of(ran)
    answers = [
        http.get(f"/api/v1/blobs/{sha256_bytes(PAGE)}"),
        http.get(f"/api/v1/jobs/{job}/logs"),
        http.get(f"/api/v1/jobs/{job}/artifact", params={"name": PAGE.decode()}),
        http.get(f"/api/v1/jobs/{PAGE.decode()}"),
        http.get("/healthz"),
        http.get("/api/v1/jobs", headers={"Host": "evil.example"}),
        TestClient(one.app, f"http://{HOST}").get("/api/v1/jobs"),
    ]
    assert answers[0].content == PAGE and PAGE.decode() in answers[1].json()["text"], "which is there"
    assert {answer.headers["content-type"].partition(";")[0] for answer in answers} == {
        "application/octet-stream", "application/json", "application/problem+json", "text/plain",
    }  # fmt: skip
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_part_of_a_blob_is_not_to_be_had(one: Served) -> None:
    """A range of one that was checked whole would be bytes that nobody checked."""
    http, sha256 = one.http(), sha256_bytes(b"whole")
    assert http.put(f"/api/v1/blobs/{sha256}", content=b"whole").status_code == 204
    for asked in ("bytes=0-1", "bytes=-1", "bytes=0-0,2-2", f"bytes={'9' * 400}-", "bytes=" + "0-1," * 1000):
        answer = http.get(f"/api/v1/blobs/{sha256}", headers={"Range": asked})
        assert (answer.status_code, answer.content) == (200, b"whole"), asked


def test_a_line_without_end_costs_a_page_of_memory(one: Served, ran: AttemptId) -> None:
    """32 MiB of it here, which is read as a page, as a stream's page, and as the last words of a rank that fell; with a secret too,
    for which each page is looked through."""
    services, job = one.services, one.job_of(ran)
    for _ in range(32):
        one.write_log(ran, b"A" * 2**20, rank=1)
    http = one.http()
    fell = AttemptReport(ran, 1, "ended", (), (RankExit(1, 1, 1, first=True),), 1)
    spec = replace(a_spec(), secrets=("KEY",))
    services.secrets.put(one.bench.control.epoch, "KEY", b"A" * 100 + b"B")
    http.get(f"/api/v1/jobs/{job}/logs", params={"rank": 1})  # what is imported at the first request is not the log's
    tracemalloc.start()
    try:
        for offset in (0, 2**24 + 1, 2**25 - 70_000):
            page = http.get(f"/api/v1/jobs/{job}/logs", params={"rank": 1, "offset": offset}).json()
            assert (len(page["text"]), page["next_offset"]) == (65_536, offset + 65_536)
            assert len(log_page(services, ran, 1, offset, 65_536, spec).text) == 65_536
        assert services.desk.last_words.told(fell).exits[0].said.startswith("AAA")
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
    assert http.get(f"/api/v1/jobs/{job}/logs", params={"rank": 1, "limit": 2**21}).status_code == 422


def routes_with_bodies() -> list[tuple[str, str]]:
    """Those that read JSON."""
    every = [(cast(Any, route), path) for route, path, _ in authorities(create_app(cast(Any, None)).routes)]
    reading = [(route, path) for route, path in every if getattr(route.dependant, "body_params", ())]
    return sorted((method, path) for route, path in reading for method in route.methods)


BOMBS = {
    "nested": "[" * 100_000,
    "closed": "[" * 900 + "]" * 900,
    "mappings": '{"spec": ' * 5_000 + "1" + "}" * 5_000,
    "a number of 900 kB": "9" * 900_000,
    "a number in a field": '{"spec": {"priority": ' + "9" * 5_000 + "}}",
    "many keys": "{" + ",".join(f'"k{number}":1' for number in range(60_000)) + "}",
    "half a character": '{"spec": {"name": "\\ud800"}, "key": "\\ud800", "team": "\\ud800", "name": "\\ud800"}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_json_that_explodes_is_one_refusal_by_every_route_that_reads_some(one: Served, name: str) -> None:
    """By who may everything; none of these bodies means anything to any route."""
    routes, http = routes_with_bodies(), one.http()
    assert len(routes) > 15
    for method, path in routes:
        url = re.sub(r"\{\w+\}", "none-1", path)
        answer = http.request(method, url, content=BOMBS[name].encode(), headers=JSON)
        assert 400 <= answer.status_code < 500, (method, path, answer.text)
        assert len(answer.content) < 10_000, (method, path)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"env": {f"K{number}": "" for number in range(BOUNDS.values)}}, "job"),
        ({"hyperparameters": {f"k{number}": 1 for number in range(BOUNDS.values)}}, "job"),
        ({f"k{number}": 1 for number in range(BOUNDS.values)}, "job"),
        ({"secrets": ["A"] * BOUNDS.values}, "job"),
        ({"entrypoint": "a" * (BOUNDS.chars + 1)}, "entrypoint"),
        ({"hyperparameters": {"x": 10**4000}}, "hyperparameters.x"),
        ({"hyperparameters": {"x": 2**512}}, "hyperparameters.x"),
        ({"hyperparameters": {"x": json.loads("[" * 20 + "]" * 20)}}, "hyperparameters.x"),
    ],
)
def test_a_spec_beyond_its_bounds_is_refused_before_anything_is_made_of_it(
    bea: TestClient, spec: dict[str, Any], field: str
) -> None:
    """Each was taken, kept for ever, and held up everybody's requests for seconds."""
    assert submitted(bea, **spec) == (422, field)
    assert submitted(bea, hyperparameters={"x": 2**512 - 1}, env={f"K{number}": "x" for number in range(100)})[0] == 201


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://127.1/", "http://0x7f000001/", "http://2130706433/", "http://017700000001/", "http://[::1]/",
        "http://[::ffff:127.0.0.1]/", "http://localhost/", "http://LOCALHOST.:7878/", "http://x.localhost/",
        "http://169.254.169.254/", "http://2852039166/", "http://0251.0376.0251.0376/", "http://0xa9fea9fe/", "http://169.254.43518/",
        "http://[::ffff:a9fe:a9fe]/", "http://[::169.254.169.254]/", "http://0/", "http://[fe80::1%25eth0]/",
        "http://user:password@hooks.example/", "http://hooks.example@169.254.169.254/", "http://x\\@169.254.169.254/",
        "http://hooks.example/\r\nX-Forged: 1", "http://hooks.example/ HTTP/1.1", "http://hooks.example/\x00", "gopher://hooks.example/",
        "file:///etc/passwd", "//hooks.example/", "http://hooks.example:99999/", "http://hooks.example:0/", "http://[::1", "http:///x",
    ],
)  # fmt: skip
def test_a_webhook_that_no_team_may_tell_is_refused_at_submit(bea: TestClient, url: str) -> None:
    assert submitted(bea, notify={"webhook": url}) == (422, "notify.webhook" if "\0" not in url else "notify")


def test_a_webhook_of_ones_own_is_taken(one: Served, bea: TestClient) -> None:
    for url in ("https://hooks.example/x?y=z", "http://10.1.2.3:8080/", "http://[2001:db8::1]/"):
        assert submitted(bea, notify={"webhook": url})[0] == 201
    assert submitted(one.http(), notify={"webhook": "http://127.0.0.1:1/"})[0] == 201, "whose machine it is may tell it"


TRAVERSALS = (
    "%2e%2e%2f%2e%2e", "%2e%2e%2f", "%2e%2e%2f%2e%2e%2ftoken", "%252e%252e%252ftoken", "..%5c..%5ctoken", "..;/token", ";..", "%00",
    "a%00b", "%2ftoken", "%c0%ae%c0%ae%c0%aftoken", "%ff", "~root", "file:%2f%2f%2fetc%2fpasswd", "%0d%0aX-Forged:%201",
)  # fmt: skip


@pytest.mark.parametrize("name", TRAVERSALS)
def test_a_name_in_a_path_that_climbs_is_just_not_found(one: Served, bea: TestClient, name: str) -> None:
    """Jobs, logs, blobs, models and secrets are looked up by name in what the platform knows: none becomes a path of the disk."""
    secret = (one.services.home / "token").read_text().strip()
    paths = (
        "jobs/{}",
        "jobs/{}/logs",
        "jobs/{}/events",
        "models/{}",
        "models/{}/1",
        "blobs/{}",
        "nodes/{}",
        "queues/{}",
        "attempts/{}",
    )
    for path in paths:
        answer = bea.get(f"/api/v1/{path.format(name)}")
        assert answer.status_code in (400, 404, 405, 422) or answer.url.path in ("/api/v1/jobs", "/api/v1/models", "/api/v1/nodes")
        assert secret not in answer.text and "root:" not in answer.text and "x-forged" not in answer.headers


@pytest.mark.parametrize(
    "name", ["../rank-0.log", "..", "/etc/passwd", "a/../b", "a\\..\\b", "%2e%2e/x", "a\0b", "file:///etc/passwd"]
)
def test_an_artifact_or_attempt_of_such_a_name_is_not_there(one: Served, ran: AttemptId, name: str) -> None:
    http, job = one.http(), one.job_of(ran)
    assert http.get(f"/api/v1/jobs/{job}/artifact", params={"name": "right.html", "attempt": ran}).status_code == 200
    for query in ({"name": name}, {"name": "right.html", "attempt": name}):
        assert http.get(f"/api/v1/jobs/{job}/artifact", params=query).status_code == 404, query
    for what in ("logs", "artifacts", "steps", "profile"):
        assert http.get(f"/api/v1/jobs/{job}/{what}", params={"attempt": name}).status_code == 404, what


def test_a_place_that_cannot_be_followed_is_refused(one: Served, bea: TestClient, tmp_path: Path) -> None:
    """As what the kernel shows of a process that is over, or of another user's: it was a fault of the server."""
    with subprocess.Popen(["true"]) as over:
        while Path(f"/proc/{over.pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
            pass
        for field, spec in (
            ("hyperparameters.init", {"hyperparameters": {"init": f"/proc/{over.pid}/cwd/models/1"}}),
            ("checkpoint.store", {"checkpoint": {"store": f"/proc/{over.pid}/cwd"}}),
        ):
            assert submitted(bea, **spec) == (422, field)
    assert submitted(bea, hyperparameters={"init": str(tmp_path)})[0] == 201


@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "file://{}",
        "FILE://{}",
        "file://localhost{}",
        "file:///{}",
        "//{}",
        "{}/.",
        "/proc/self/root{}",
        "{home}/./jobs//{job}",
        "{home}/l/{job}",
    ],
)
def test_a_model_of_another_team_is_out_of_reach_in_every_spelling(one: Served, bea: TestClient, form: str) -> None:
    link = one.services.home / "l"
    if not link.is_symlink():
        link.symlink_to("jobs")
    theirs, own = (one.bench.submit(replace(a_spec(), team=team)) for team in ("red", "blue"))
    for job, status in ((theirs, 422), (own, 201)):
        place = form.replace("{}", f"{one.services.home}/jobs/{job}").format(home=one.services.home, job=job)
        assert submitted(bea, hyperparameters={"init": place})[0] == status, place
