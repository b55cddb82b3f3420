"""Secrets at rest, over the API, and to the node that may have them: never to anybody else, never in an error."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from phalanx.core.errors import NotFound, SetupError, SpecError, StoreUnavailable
from phalanx.core.messages import StartRanks
from phalanx.core.spec import Kind
from phalanx.operate.control.secret_keys import KeyFile, seal
from phalanx.operate.control.secrets import KEY_FILE, VALUE_BYTES_MAX, Secrets
from phalanx.operate.control.store import Store, Superseded
from tests.operate.control.control_bench import Bench, a_spec
from tests.operate.control.live_server import LiveServer, PlayedAgent, until

pytestmark = pytest.mark.both_databases

CANARY = "canary-3f9c1b7e-5a2d"


@pytest.fixture
def store(database: Path | str) -> Iterator[Store]:
    store = Store(database)
    store.take_lead()
    yield store
    store.close()


@pytest.fixture
def secrets(tmp_path: Path, store: Store) -> Secrets:
    return Secrets(tmp_path, store, lambda: 1_700_000_000_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path_factory.mktemp("secrets") / "home")
    live.start()
    yield live
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words(), live.words()
    assert CANARY not in live.words()


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


def joined(server: LiveServer, node: str) -> str:
    """The credential of a node that has joined."""
    credential = "c" * 43
    with server.http() as http:
        token = http.post("/agent/tokens", json={"lifetime_ms": 60_000}).json()["token"]
    asked = {"node": node, "credential_sha256": hashlib.sha256(credential.encode()).hexdigest()}
    with server.http(token) as http:
        assert http.post("/agent/join", json=asked).status_code == 200
    return credential


def test_a_value_is_sealed_and_comes_back(tmp_path: Path, secrets: Secrets, store: Store) -> None:
    secrets.put(1, "TOKEN", CANARY.encode())
    secrets.put(1, "OTHER", "grüße".encode())
    assert secrets.values(["TOKEN", "OTHER", "NONE"]) == {"TOKEN": CANARY, "OTHER": "grüße"}
    assert [view.name for view in secrets.views()] == ["OTHER", "TOKEN"]
    assert CANARY.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600
    secrets.put(1, "TOKEN", b"another")
    assert secrets.values(["TOKEN"]) == {"TOKEN": "another"}
    secrets.remove(1, "TOKEN")
    assert secrets.missing(["TOKEN", "OTHER"]) == ("TOKEN",)
    with pytest.raises(NotFound):
        secrets.remove(1, "TOKEN")


@pytest.mark.parametrize("damage", ["lost", "cut", "not base64", "another"])
def test_a_key_that_does_not_fit_is_one_error_that_says_what_to_do(tmp_path: Path, secrets: Secrets, damage: str) -> None:
    secrets.put(1, "TOKEN", CANARY.encode())
    key = tmp_path / "secret.key"
    whole = key.read_bytes()
    if damage == "lost":
        key.unlink()
    else:
        key.write_bytes({"cut": whole[:20], "not base64": b"%%%%", "another": b"A" * 43 + b"=\n"}[damage])
    for call in (lambda: secrets.values(["TOKEN"]), lambda: secrets.put(1, "NEW", b"value")):
        with pytest.raises(SetupError, match="restore it from a backup, or `phalanx secret rm` every name") as refused:
            call()
        assert CANARY not in str(refused.value)
    assert secrets.missing(["NEW"]) == ("NEW",), "nothing was sealed with a key that opens half"
    secrets.remove(1, "TOKEN")
    secrets.put(1, "NEW", b"value")
    assert secrets.values(["NEW"]) == {"NEW": "value"}


class Killed(BaseException):
    """As by SIGKILL: no handler of an error has a say."""


@pytest.mark.parametrize("instant", ["before both keys", "after both keys", "in the transaction", "after it"])
def test_a_rotation_that_is_cut_off_leaves_every_value_and_the_next_goes_on(
    tmp_path: Path, store: Store, secrets: Secrets, monkeypatch: pytest.MonkeyPatch, instant: str
) -> None:
    given = {f"NAME_{number}": f"{CANARY}-{number}" for number in range(3)}
    for name, value in given.items():
        secrets.put(1, name, value.encode())
    first = (tmp_path / "secret.key").read_bytes()
    with monkeypatch.context() as patched:
        cut_off(patched, instant)
        with pytest.raises(Killed):
            secrets.rotate(1)
    again = Secrets(tmp_path, store, lambda: 1)  # a server that was started again
    assert again.values(list(given)) == given
    again.put(1, "BETWEEN", b"sealed while there are two keys")
    assert again.rotate(1) == 4 and again.values([*given, "BETWEEN"]) == {**given, "BETWEEN": "sealed while there are two keys"}
    key = (tmp_path / "secret.key").read_bytes()
    assert len(key.splitlines()) == 1 and key != first
    (tmp_path / "secret.key").write_bytes(first)
    with pytest.raises(SetupError, match="is not the key"):
        again.values(list(given))


def cut_off(patched: pytest.MonkeyPatch, instant: str) -> None:
    """Ends the rotation there."""
    writes = KeyFile.write
    done: list[int] = []

    def write(self: KeyFile, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        done.append(len(keys))
        if instant == "before both keys" or (instant == "after it" and len(done) == 2):
            raise Killed
        written = writes(self, keys)
        if instant == "after both keys":
            raise Killed
        return written

    patched.setattr(KeyFile, "write", write)
    if instant == "in the transaction":
        calls: list[str] = []

        def sealed(key: bytes, name: str, value: bytes) -> str:
            calls.append(name)
            if len(calls) == 2:
                raise Killed
            return seal(key, name, value)

        patched.setattr("phalanx.operate.control.secrets.seal", sealed)


def test_a_rotation_without_secrets_makes_a_key_for_the_next(secrets: Secrets) -> None:
    assert secrets.rotate(1) == 0
    secrets.put(1, "TOKEN", b"value")
    assert secrets.rotate(1) == 1 and secrets.values(["TOKEN"]) == {"TOKEN": "value"}


def test_a_rotation_under_a_key_that_does_not_fit_changes_nothing(tmp_path: Path, secrets: Secrets) -> None:
    secrets.put(1, "TOKEN", b"value")
    whole = (tmp_path / "secret.key").read_bytes()
    wrong = b"A" * 43 + b"=\n"
    (tmp_path / "secret.key").write_bytes(wrong)
    with pytest.raises(SetupError, match="is not the key"):
        secrets.rotate(1)
    assert (tmp_path / "secret.key").read_bytes() == wrong
    (tmp_path / "secret.key").write_bytes(whole)
    assert secrets.values(["TOKEN"]) == {"TOKEN": "value"}


def test_the_api_rotates_for_a_person_and_shows_no_key(server: LiveServer, http: httpx.Client) -> None:
    assert http.put("/secrets/ROTATED", content=CANARY).status_code == 204
    key = (server.home / "secret.key").read_bytes()
    answer = http.post("/secret-key/rotate")
    assert answer.status_code == 200 and set(answer.json()) == {"secrets"} and answer.json()["secrets"] >= 1
    assert (server.home / "secret.key").read_bytes() != key
    with server.http("not-a-token") as stranger:
        assert stranger.post("/secret-key/rotate").status_code == 401
    assert http.delete("/secrets/ROTATED").status_code == 204


def test_a_key_that_others_may_read_is_made_private(tmp_path: Path, secrets: Secrets) -> None:
    secrets.put(1, "TOKEN", b"value")
    (tmp_path / "secret.key").chmod(0o644)
    assert secrets.values(["TOKEN"]) == {"TOKEN": "value"}
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600


def test_a_value_under_another_name_opens_nothing(store: Store, secrets: Secrets) -> None:
    secrets.put(1, "TOKEN", b"value")
    with store.leading(1) as connection:
        connection.execute(text("UPDATE team_secrets SET name = 'OTHER'"))
    with pytest.raises(SetupError):
        secrets.values(["OTHER"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", b"v"), ("1A", b"v"), ("A-B", b"v"), ("A" * 65, b"v"), ("PHALANX_X", b"v"), ("A\n", b"v"),
        ("A", b""), ("A", CANARY.encode() + b"\0"), ("A", CANARY.encode() + b"\xff"), ("A", CANARY.encode() * VALUE_BYTES_MAX),
    ],
)  # fmt: skip
def test_what_no_variable_can_hold_is_refused_without_the_value(secrets: Secrets, name: str, value: bytes) -> None:
    with pytest.raises(SpecError) as refused:
        secrets.put(1, name, value)
    assert CANARY not in str(refused.value)


def test_the_api_takes_values_and_gives_names(server: LiveServer, http: httpx.Client) -> None:
    assert http.put("/secrets/LISTED", content=CANARY).status_code == 204
    listed = http.get("/secrets").json()
    assert [set(one) for one in listed] == [{"name", "set_ms", "team", "tag"}] * len(listed)
    assert "LISTED" in [one["name"] for one in listed]
    for answer in (
        http.put("/secrets/BAD", content=CANARY.encode() + b"\0"),
        http.put("/secrets/1BAD", content=CANARY),
        http.put(f"/secrets/{'B' * 70}", content=CANARY),
        http.put("/secrets/BIG", content=CANARY * 100_000),
    ):
        assert answer.status_code in (404, 413, 422)
        assert CANARY not in answer.text
    shown = http.get("/secrets/LISTED")
    assert set(shown.json()) == {"name", "set_ms", "team", "tag"}
    assert CANARY not in shown.text
    assert http.delete("/secrets/LISTED").status_code == 204
    assert http.delete("/secrets/LISTED").status_code == 404


def test_a_submit_that_names_an_unknown_secret_is_refused(http: httpx.Client) -> None:
    spec = {"name": "asks", "entrypoint": "true"}
    notify = {"webhook": "http://127.0.0.1:1/", "secret": "NOBODY"}
    for more, field in (({"secrets": ["NOBODY"]}, "secrets"), ({"notify": notify}, "notify.secret")):
        answer = http.post("/jobs", json={"spec": {**spec, **more}})
        assert (answer.status_code, answer.json()["field"], answer.json()["value"]) == (422, field, "NOBODY")
        assert "phalanx secret set NOBODY" in answer.json()["fix"]


def test_a_node_gets_the_values_of_what_it_holds_and_of_nothing_else(server: LiveServer, http: httpx.Client) -> None:
    http.put("/secrets/GIVEN", content=CANARY)
    http.put("/secrets/UNASKED", content=b"not for this job")
    with PlayedAgent(server) as agent, server.http(server.token("node-token")) as node:
        agent.shape = replace(agent.shape, features=("secrets",))
        agent.hello()
        job = server.submit(name="holds", secrets=["GIVEN"], resources={"gpus": "2"})
        start = agent.hear(StartRanks)
        agent.report(start.launch, start.epoch, "running")
        attempt = start.launch.attempt
        assert start.launch.secrets == ("GIVEN",)
        assert CANARY not in str(start)
        until(lambda: server.get(f"/jobs/{job}")["state"] == "running")
        answer = node.get(f"/attempts/{attempt}/secrets", params={"node": agent.node})
        assert answer.json() == {"GIVEN": CANARY}
        assert answer.headers["cache-control"] == "no-store"
        assert http.get(f"/attempts/{attempt}/secrets", params={"node": agent.node}).status_code == 403, "not the admin"
        assert node.get(f"/attempts/{attempt}/secrets", params={"node": "node-b"}).status_code == 404, "nothing placed there"
        assert node.get(f"/attempts/{job}.2/secrets", params={"node": agent.node}).status_code == 404
        with server.http(joined(server, "rack-9")) as other:
            assert other.get(f"/attempts/{attempt}/secrets", params={"node": agent.node}).status_code == 401, "another's name"
            assert other.get(f"/attempts/{attempt}/secrets", params={"node": "rack-9"}).status_code == 404, "not placed there"
            asked = {"node": agent.node, "attempt": attempt}
            assert other.put(f"/blobs/{hashlib.sha256(b'x').hexdigest()}", content=b"x", params=asked).status_code == 401
        http.delete("/secrets/GIVEN")
        gone = node.get(f"/attempts/{attempt}/secrets", params={"node": agent.node})
        assert (gone.status_code, gone.json()["value"]) == (409, "GIVEN")
        agent.report(start.launch, start.epoch, "ended", {0: 0, 1: 0})
        until(lambda: server.get(f"/jobs/{job}")["state"] == "finished")
        assert node.get(f"/attempts/{attempt}/secrets", params={"node": agent.node}).status_code == 404, "it has ended"
    shown = [http.get(path).text for path in (f"/jobs/{job}", f"/jobs/{job}/events", "/jobs", "/status", "/secrets")]
    assert CANARY not in "".join(shown)
    files = [path for path in server.home.rglob("*") if path.is_file()]
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    assert "secret.key" in [path.name for path in files]


@pytest.mark.parametrize("kind", ["batch", "service"])
def test_a_refused_start_is_not_tried_again_until_somebody_asks(bench: Bench, kind: Kind) -> None:
    agent = bench.add("a")
    job = bench.submit(a_spec(kind=kind, max_restarts=5))
    bench.tick(2)
    attempt = bench.attempt(job).id
    why = "secret TOKEN is not stored any more"
    agent.exit(attempt, {0: 127, 1: 127})
    agent.held[attempt] = replace(agent.held[attempt], phase="ended", ranks=(), refused=why)
    agent.report(attempt)
    bench.tick(2)
    assert (bench.state(job), bench.attempt(job).detail, len(bench.job(job).attempts)) == ("finished", why, 1)
    bench.control.retry(job, "ada")
    bench.tick(2)
    assert bench.state(job) == "starting"


def test_a_superseded_leader_leaves_the_keys_and_two_do_not_turn_them_at_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "phalanx.db")
    epoch, kept = store.take_lead(), Secrets(tmp_path, store, lambda: 0)
    kept.put(epoch, "TOKEN", b"tiger")
    with KeyFile(tmp_path / KEY_FILE).alone(), pytest.raises(StoreUnavailable, match="another process"):
        kept.rotate(epoch)
    newer = store.take_lead()
    before = (tmp_path / KEY_FILE).read_bytes()
    with pytest.raises(Superseded):
        kept.rotate(epoch)
    assert (tmp_path / KEY_FILE).read_bytes() == before
    assert kept.rotate(newer) == 1 and (tmp_path / KEY_FILE).read_bytes() != before
    assert kept.values(["TOKEN"]) == {"TOKEN": "tiger"}
    store.close()
