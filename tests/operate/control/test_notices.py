"""Webhooks: a real receiver on loopback is told once per occasion, whatever fails on the way, and nobody who should not be."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from phalanx.core.errors import SetupError, SpecError, StoreUnavailable, WorldError
from phalanx.core.spec import JobSpec, Notify, Occasion
from phalanx.operate.control import notice_pump, notices, webhook
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.notice_pump import NoticePump
from phalanx.operate.control.secrets import Secrets
from tests.operate.control.control_bench import Bench, a_spec
from tests.operate.control.live_server import LiveServer, until

pytestmark = pytest.mark.both_databases

ALL: tuple[Occasion, ...] = ("started", "restarted", "waiting", "paused", "finished")
KEY = "a key of the receiver"
DOCS = Path(__file__).resolve().parents[3] / "docs"


@dataclass
class Receiver:
    """Answers with the next of `statuses`, the last one again and again, and keeps what came."""

    statuses: list[int] = field(default_factory=lambda: [200])
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.got]


@contextlib.contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append((self.path, dict(self.headers), body))
            status = receiver.statuses.pop(0) if len(receiver.statuses) > 1 else receiver.statuses[0]
            self.send_response(status)
            if status in (301, 302, 307):
                self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that does not trust our certificate hangs up

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield receiver
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(notice_pump, "POLL_S", 0.01)
    with receiving() as made:
        yield made


def told_of(bench: Bench, url: str, on: tuple[Occasion, ...] = ALL, secret: str = "", **changes: Any) -> JobSpec:
    return replace(a_spec(**changes), notify=Notify(webhook=url, on=on, secret=secret))


def finish(bench: Bench, spec: JobSpec) -> str:
    """A job from its submit to its success; its id."""
    agent = bench.agents.get("a") or bench.add("a")
    job = bench.submit(spec)
    bench.tick(2)
    agent.run(bench.attempt(job).id)
    bench.tick()
    agent.end(bench.attempt(job).id)
    bench.tick()
    assert bench.state(job) == "finished"
    return job


def pumped(
    bench: Bench,
    until: Callable[[], bool],
    resolve: webhook.Resolve = webhook.resolve,
    url: str = "http://127.0.0.1:7",
    strangers: Callable[[], bool] = lambda: False,
) -> None:
    """Runs a pump over the bench's database until something is so, as one server's life."""

    async def scenario() -> None:
        control = ControlThread(bench.control, lambda error: pytest.fail(str(error)))
        secrets = Secrets(bench.home, bench.store, bench.clock.now_ms)
        pump = asyncio.create_task(NoticePump(control, bench.store, secrets, url, bench.clock.now_ms, resolve, strangers).run())
        async with asyncio.timeout(60):
            while not until():
                assert not pump.done()
                await asyncio.sleep(0.005)
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)
        control.close()

    asyncio.run(scenario())


def waiting(bench: Bench) -> list[notices.Notice]:
    """What is not delivered yet, whenever it is due."""
    due = [one for to in notices.receivers(bench.store, 2**60) for one in notices.due(bench.store, to, 2**60, 10_000)]
    return sorted(due, key=lambda notice: notice.seq)


def one_more_try(bench: Bench) -> Callable[[], bool]:
    """Whether the oldest was tried again, or is gone."""
    before = waiting(bench)[0].tries
    return lambda: all(notice.tries > before for notice in waiting(bench)[:1])


def test_each_occasion_is_told_once_in_order_and_signed(bench: Bench, receiver: Receiver) -> None:
    Secrets(bench.home, bench.store, bench.clock.now_ms).put(bench.control.epoch, "HOOK_KEY", KEY.encode())
    job = bench.submit(told_of(bench, receiver.url, secret="HOOK_KEY"))
    bench.tick()
    agent = bench.add("a")
    bench.tick(2)
    agent.run(bench.attempt(job).id)
    bench.tick()
    bench.clock.sleep(20_000)
    agent.renew()
    agent.end(bench.attempt(job).id, 3)
    bench.tick(2)
    agent.run(bench.attempt(job).id)
    bench.tick()
    bench.control.pause(job, "ada")
    bench.tick(3)
    bench.control.cancel(job, "ada")
    pumped(bench, lambda: not waiting(bench))
    said = [(one["occasion"], one["state"], one["outcome"], one["attempt"]) for one in receiver.told]
    assert said == [
        ("waiting", "pending", None, None),
        ("started", "running", None, f"{job}.1"),
        ("restarted", "running", None, f"{job}.2"),
        ("paused", "paused", None, f"{job}.2"),
        ("finished", "finished", "cancelled", f"{job}.2"),
    ]
    events = {event.seq: event for event in bench.events()}
    assert all(events[one["id"]].at_ms == one["at_ms"] for one in receiver.told)
    assert len({one["id"] for one in receiver.told}) == 5
    assert {(one["job"], one["name"], one["url"]) for one in receiver.told} == {
        (job, "tiny", f"http://127.0.0.1:7/api/v1/jobs/{job}")
    }
    assert "waits for nodes" in receiver.told[0]["detail"]
    assert receiver.told[-1]["detail"] == "cancelled while paused"
    for path, headers, body in receiver.got:
        assert path == "/hook"
        assert headers["Phalanx-Event"] == str(json.loads(body)["id"])
        assert headers["Content-Type"] == "application/json"
        assert KEY not in str(headers) + body.decode()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (webhook.Refused("hooks.example is 10.1.2.3: a private address"), "nothing is told to its address"),
        (SetupError("notify.secret", "HOOK", "is not stored any more"), "the secret that signs it is not stored"),
        (SetupError("secret key", "/home/platform/secret.key", "is not the key that red/HOOK was sealed with"), "SetupError"),
        (StoreUnavailable("/home/platform/phalanx.db: disk I/O error"), "StoreUnavailable"),
        (OSError(113, "No route to host", "10.1.2.3"), "OSError"),
        (WorldError("no answer in 10 s"), "no answer in 10 s"),
        (ZeroDivisionError("x"), "ZeroDivisionError"),
    ],
)
def test_people_are_shown_why_and_nothing_of_the_machine(error: Exception, shown: str) -> None:
    """A delivery's end is for all who see its job; what the server's log has beside it is not."""
    why = notice_pump._why(error)
    assert why.shown.startswith(shown)
    assert not any(secret in why.shown for secret in ("/home", "10.1.2.3", "red/"))


def test_the_documented_check_knows_genuine_from_forged_and_replayed() -> None:
    snippet = re.findall(r"```python\n(.*?)```", (DOCS / "notify.md").read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(snippet, names)
    genuine, now_s = names["is_genuine"], int(datetime.now(UTC).timestamp())

    def headers(timestamp_s: int, key: str = KEY) -> dict[str, str]:
        signature = webhook.signed(b"{}", timestamp_s, key)
        return {webhook.TIMESTAMP_HEADER: str(timestamp_s), webhook.SIGNATURE_HEADER: signature}

    assert genuine(headers(now_s), b"{}", KEY)
    assert not genuine(headers(now_s), b"{ }", KEY)
    assert not genuine(headers(now_s, "another"), b"{}", KEY)
    assert not genuine(headers(now_s - 3600), b"{}", KEY)
    assert not genuine({**headers(now_s - 3600), webhook.TIMESTAMP_HEADER: str(now_s)}, b"{}", KEY)


def test_only_what_was_asked_for_is_told(bench: Bench, receiver: Receiver) -> None:
    finish(bench, told_of(bench, receiver.url, on=("finished",)))
    finish(bench, a_spec(name="silent"))
    pumped(bench, lambda: not waiting(bench))
    assert [(one["name"], one["occasion"], one["outcome"]) for one in receiver.told] == [("tiny", "finished", "succeeded")]


def test_a_receiver_that_refuses_is_asked_again_later_and_the_wait_outlives_the_server(bench: Bench, receiver: Receiver) -> None:
    receiver.statuses = [500, 503, 200]
    finish(bench, told_of(bench, receiver.url, on=("finished",)))
    pumped(bench, lambda: [one.tries for one in waiting(bench)] == [1])
    assert len(receiver.got) == 1
    bench.restart()
    pumped(bench, lambda: len(receiver.got) == 1)
    bench.clock.sleep(notice_pump.BACKOFF_MS[0])
    pumped(bench, lambda: [one.tries for one in waiting(bench)] == [2])
    bench.restart()
    bench.clock.sleep(notice_pump.BACKOFF_MS[1])
    pumped(bench, lambda: not waiting(bench))
    assert [headers["Phalanx-Event"] for _, headers, _ in receiver.got] == [receiver.got[0][1]["Phalanx-Event"]] * 3
    bench.clock.sleep(10**6)
    pumped(bench, lambda: True)
    assert len(receiver.got) == 3
    (ended,) = notices.history(bench.store, None, 10)
    assert (ended.outcome, ended.detail, ended.notice.tries) == ("accepted", "", 3)


def test_what_nobody_accepts_for_a_day_is_given_up_with_one_line(bench: Bench, receiver: Receiver) -> None:
    receiver.statuses = [404]
    finish(bench, told_of(bench, receiver.url, on=("finished",)))
    with structlog.testing.capture_logs() as lines:
        while waiting(bench):
            pumped(bench, one_more_try(bench))
            bench.clock.sleep(notice_pump.BACKOFF_MS[-1])
    given_up = [line for line in lines if line["event"] == "notice_given_up"]
    assert [(line["why"], line["host"]) for line in given_up] == [("it answered 404", "127.0.0.1")]
    assert 24 <= len(receiver.got) <= 31
    assert "/hook" not in str(lines), "the path may be the receiver's password"
    (ended,) = notices.history(bench.store, None, 10)
    assert (ended.outcome, ended.detail, ended.notice.tries) == ("given_up", "it answered 404", len(receiver.got))


def test_a_redirect_is_not_followed(bench: Bench, receiver: Receiver) -> None:
    receiver.statuses = [302, 307, 200]
    finish(bench, told_of(bench, receiver.url, on=("finished",)))
    for _ in range(2):
        pumped(bench, one_more_try(bench))
        bench.clock.sleep(notice_pump.BACKOFF_MS[-1])
    pumped(bench, lambda: not waiting(bench))
    assert [path for path, _, _ in receiver.got] == ["/hook"] * 3


def test_the_address_that_was_checked_is_the_one_connected_to(bench: Bench, receiver: Receiver) -> None:
    asked: list[tuple[str, int]] = []

    async def changing(host: str, port: int) -> Sequence[str]:
        """A name that means our receiver the first time, and a metadata service ever after."""
        asked.append((host, port))
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    finish(bench, told_of(bench, f"http://receiver.test:{receiver.port}/hook?x=1", on=("finished",)))
    pumped(bench, lambda: not waiting(bench), changing)
    assert asked == [("receiver.test", receiver.port)]
    assert [(path, headers["Host"]) for path, headers, _ in receiver.got] == [("/hook?x=1", f"receiver.test:{receiver.port}")]


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "fe80::1", "fe80::1%2", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1",
        "0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "100.100.100.200", "fd00:ec2::254", "::169.254.169.254",
        "fd00:ec2::23", "::ffff:0:169.254.169.254", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:fffe::a9fe:a9fe", "fd20:ce::254",
    ],
)  # fmt: skip
def test_a_name_that_leads_where_none_should_be_told_is_given_up_at_once(bench: Bench, receiver: Receiver, address: str) -> None:
    async def leads_there(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1", address]

    finish(bench, told_of(bench, f"http://receiver.test:{receiver.port}/hook", on=("finished",)))
    with structlog.testing.capture_logs() as lines:
        pumped(bench, lambda: not waiting(bench), leads_there)
    assert [line["event"] for line in lines if line["event"].startswith("notice")] == ["notice_given_up"]
    assert receiver.got == []


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "0.0.0.0"])
def test_a_literal_of_that_kind_is_refused_at_submit(host: str) -> None:
    with pytest.raises(SpecError, match=r"notify\.webhook"):
        webhook.check_literal(f"http://{host}/latest")
    for fine in ("http://127.0.0.1/", "http://10.1.2.3:80/", "https://[::1]/", "https://example.org/"):
        webhook.check_literal(fine)


def test_odd_spellings_of_an_address_are_seen_through(bench: Bench, receiver: Receiver) -> None:
    for spelling in ("2852039166", "0xa9fea9fe", "169.254.43518"):
        with pytest.raises(webhook.Refused):
            asyncio.run(webhook.target_of(f"http://{spelling}/"))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.200.3.4", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "::127.0.0.1"])
def test_this_machine_is_told_nothing_for_a_team_that_others_do_not_trust(bench: Bench, receiver: Receiver, address: str) -> None:
    """By a name that means something else at submit. For a team that is trusted, and the platform itself, it is."""

    async def leads_here(host: str, port: int) -> Sequence[str]:
        return [address]

    def told(team: str, strangers: bool) -> list[str]:
        finish(bench, replace(told_of(bench, f"http://receiver.test:{receiver.port}/hook", on=("finished",)), team=team))
        with structlog.testing.capture_logs() as lines:
            pumped(bench, lambda: not waiting(bench), leads_here, strangers=lambda: strangers)
        return [line["why"] for line in lines if line["event"] == "notice_given_up"]

    assert told("blue", strangers=True) == [f"receiver.test is {address}: loopback is not told for a team that others do not trust"]
    assert receiver.got == []
    if address == "127.0.0.1":
        assert told("blue", strangers=False) == told("", strangers=True) == [] and len(receiver.got) == 2


def test_the_platforms_own_server_is_no_receiver_of_another_teams(bench: Bench) -> None:
    for spelling in ("127.1", "0x7f.1", "2130706433", "localhost", "x.LOCALHOST.", "[::1]"):
        webhook.check_literal(f"http://{spelling}:7878/")
        with pytest.raises(SpecError, match="loopback"):
            webhook.check_literal(f"http://{spelling}:7878/", loopback=False)


def test_a_receiver_that_listens_on_one_of_its_addresses_is_found(bench: Bench, receiver: Receiver) -> None:
    async def both(host: str, port: int) -> Sequence[str]:
        return ["::1", "127.0.0.2", "127.0.0.1"]

    finish(bench, told_of(bench, f"http://localhost:{receiver.port}/hook", on=("finished",)))
    pumped(bench, lambda: not waiting(bench), both)
    assert len(receiver.got) == 1


def test_a_name_in_other_letters_is_told_under_its_ascii_form(bench: Bench, receiver: Receiver) -> None:
    async def here(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    finish(bench, told_of(bench, f"http://bücher.test:{receiver.port}/hook", on=("finished",)))
    pumped(bench, lambda: not waiting(bench), here)
    assert [headers["Host"] for _, headers, _ in receiver.got] == [f"xn--bcher-kva.test:{receiver.port}"]


def test_whatever_goes_wrong_with_one_receiver_is_a_failure_of_that_one(bench: Bench, receiver: Receiver) -> None:
    async def odd(host: str, port: int) -> Sequence[str]:
        if host == "odd.test":
            raise RecursionError("a bug of somebody's resolver")
        return ["127.0.0.1"]

    finish(bench, told_of(bench, f"http://odd.test:{receiver.port}/hook", on=("finished",)))
    finish(bench, told_of(bench, receiver.url, on=("finished",), name="other"))
    pumped(bench, lambda: [one.tries for one in waiting(bench)] == [1], odd)
    assert [one["name"] for one in receiver.told] == ["other"]


def test_a_running_server_tells_and_goes_on_after_a_kill(tmp_path: Path, receiver: Receiver) -> None:
    server = LiveServer(tmp_path / "home")
    server.start()
    receiver.statuses = [500, 200]
    notify = {"webhook": receiver.url, "on": ["waiting", "finished"]}
    job = server.submit(name="waits", notify=notify)
    until(lambda: len(receiver.got) == 1)
    server.end(signal.SIGKILL)
    server.start()
    with server.http() as http:
        http.post(f"/jobs/{job}/cancel")
    until(lambda: len(receiver.got) == 3)
    assert sorted(one["occasion"] for one in receiver.told) == ["finished", "waiting", "waiting"]
    assert len({one["id"] for one in receiver.told}) == 2
    assert receiver.told[-1]["url"] == f"{server.url}/api/v1/jobs/{job}"
    assert server.end() == 0
    assert "Traceback" not in server.words()
    assert "/hook" not in server.words()


def test_a_dead_receiver_blocks_no_other(bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as mute:
        dead = f"http://127.0.0.1:{mute.getsockname()[1]}/hook"
        for number in range(3):
            finish(bench, told_of(bench, dead, name=f"dead-{number}"))
        pumped(bench, lambda: True)
        finish(bench, told_of(bench, receiver.url))
        monkeypatch.setattr(webhook, "TIMEOUT_S", 0.2)
        pumped(bench, lambda: all(one.webhook == dead for one in waiting(bench)))
    assert [one["occasion"] for one in receiver.told] == ["started", "finished"]
    assert len(waiting(bench)) == 6


def test_a_busy_receiver_does_not_keep_the_lanes_from_others(
    bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notice_pump, "LANES_MAX", 1)
    monkeypatch.setattr(notice_pump, "ROWS", 2)
    busy = receiver.url.replace("/hook", "/busy")
    for number in range(4):
        finish(bench, told_of(bench, busy, name=f"busy-{number}"))
        bench.clock.sleep(1)
    finish(bench, told_of(bench, receiver.url, on=("finished",), name="other"))
    pumped(bench, lambda: not waiting(bench))
    assert [path for path, _, _ in receiver.got] == ["/busy"] * 2 + ["/hook"] + ["/busy"] * 6


def test_what_waits_for_one_receiver_is_bounded(bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice_pump, "WAITING_MAX", 3)
    receiver.statuses = [500]
    jobs = [finish(bench, told_of(bench, receiver.url, on=("finished",), name=f"job-{number}")) for number in range(5)]
    finish(bench, told_of(bench, receiver.url + "2", on=("finished",), name="other"))
    with structlog.testing.capture_logs() as lines:
        pumped(bench, lambda: len(receiver.got) == 2)
    assert [one.entry["job"] for one in waiting(bench)[:3]] == jobs[2:]
    assert len(waiting(bench)) == 4
    assert [line["count"] for line in lines if line["event"] == "notices_given_up"] == [2]
    assert "/hook" not in str(lines)


def test_names_that_nobody_resolves_take_no_thread_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def mute(*_: object, **__: object) -> list[object]:
        gate.wait(60)
        raise socket.gaierror("no answer")

    async def scenario() -> None:
        lookups = [asyncio.create_task(webhook.resolve(f"name-{number}.test", 80)) for number in range(40)]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await asyncio.to_thread(lambda: None)
        lookups[0].cancel()
        gate.set()
        ends = await asyncio.gather(*lookups, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError, socket.gaierror}

    monkeypatch.setattr(socket, "getaddrinfo", mute)
    asyncio.run(scenario())


def test_an_answer_without_end_costs_no_more_than_the_time_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.5)
    beginnings = {"/headers": b"HTTP/1.1 200 OK\r\n", "/body": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"}

    hung_up = asyncio.Semaphore(0)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        with contextlib.suppress(ConnectionError):
            writer.write(beginnings[path])
            while not writer.is_closing():
                writer.write(b"X: y\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        hung_up.release()

    async def scenario() -> None:
        async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
            at = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with asyncio.timeout(60):
                assert await webhook.post(await webhook.target_of(f"{at}/body"), b"{}", {}) == 200
                with pytest.raises(WorldError, match="no answer in"):
                    await webhook.post(await webhook.target_of(f"{at}/headers"), b"{}", {})
                for _ in beginnings:
                    await hung_up.acquire()
                await asyncio.sleep(0)

    asyncio.run(scenario())


def test_nothing_unsigned_is_sent_once_the_secret_is_gone(bench: Bench, receiver: Receiver) -> None:
    secrets = Secrets(bench.home, bench.store, bench.clock.now_ms)
    finish(bench, told_of(bench, receiver.url, on=("finished",), secret="HOOK_KEY"))
    pumped(bench, lambda: [one.tries for one in waiting(bench)] == [1])
    assert receiver.got == []
    secrets.put(bench.control.epoch, "HOOK_KEY", KEY.encode())
    bench.clock.sleep(notice_pump.BACKOFF_MS[0])
    pumped(bench, lambda: not waiting(bench))
    [(_, headers, body)] = receiver.got
    assert headers["Phalanx-Signature"] == webhook.signed(body, int(headers["Phalanx-Timestamp"]), KEY)


def test_certificates_are_verified_by_the_name_and_not_the_address(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notice_pump, "POLL_S", 0.01)
    file = certificate(tmp_path, "receiver.test")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)

    async def here(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    with receiving(tls) as receiver, structlog.testing.capture_logs() as lines:
        finish(bench, told_of(bench, f"https://receiver.test:{receiver.port}/hook", on=("finished",)))
        pumped(bench, lambda: [one.tries for one in waiting(bench)] == [1], here)
        assert "its certificate is not trusted" in str(lines)
        monkeypatch.setattr(webhook, "_trusted", lambda: ssl.create_default_context(cafile=str(file)))
        bench.clock.sleep(notice_pump.BACKOFF_MS[0])
        pumped(bench, lambda: not waiting(bench), here)
        assert len(receiver.got) == 1
        finish(bench, told_of(bench, f"https://other.test:{receiver.port}/hook", on=("finished",), name="other"))
        pumped(bench, lambda: [one.tries for one in waiting(bench)] == [1], here)
        assert len(receiver.got) == 1, "trusted, but not for that name"


def certificate(folder: Path, name: str) -> Path:
    """A self-signed one with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ip_address("192.0.2.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "cert.pem"
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file
