"""Events and logs as they come: whole, resumable, with an end, and at no cost to the server for who is slow."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.errors import RateLimited
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.messages import Chunk
from phalanx.core.people import BUILT_IN, Person
from phalanx.decide.scheduler import schedule
from phalanx.operate.control.api import sending, streams
from phalanx.operate.control.api.asker import Asker
from phalanx.operate.control.api.sending import Sent
from phalanx.operate.control.auth import Caller
from phalanx.operate.control.bells import Bell
from tests.operate.control.control_bench import a_spec
from tests.operate.control.served import HOST, Served, served

RAN = AttemptId("ran-1.1")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "home") as one:
        one.run("ran")
        yield one


def stream(one: Served, path: str, last: str = "", **query: Any) -> list[dict[str, str]]:
    """The events of a stream that ends."""
    headers = {"Last-Event-ID": last} if last else {}
    answer = one.http().get(f"/api/v1{path}", params=query, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "etag" not in answer.headers
    blocks = [block for block in answer.text.split("\n\n") if block and not block.startswith(":")]
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]


async def admin() -> Asker:
    """The home's own, who may for ever."""
    return Asker(BUILT_IN, Caller("admin"), "127.0.0.1")


async def following(events: AsyncGenerator[Sent | None], count: int) -> list[Sent]:
    """The next `count` of a stream that goes on."""
    found: list[Sent] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            sent = await anext(events)
            found += [sent] if sent is not None else []
    return found


def test_a_jobs_events_come_in_order_and_end_with_it(one: Served) -> None:
    one.end(RAN)
    found = stream(one, "/jobs/ran-1/events/stream")
    expected = [event.seq for event in one.bench.store.events(job=JobId("ran-1"))]
    assert [int(event["id"]) for event in found[:-1]] == expected
    assert json.loads(found[0]["data"])["kind"] == "job_submitted"
    assert (found[-1]["event"], json.loads(found[-1]["data"])) == ("end", {"why": "ran-1 has finished"})
    again = stream(one, "/jobs/ran-1/events/stream", last=found[1]["id"])
    assert again == found[2:]
    one_kind = stream(one, "/jobs/ran-1/events/stream", kind="job_submitted")
    assert [event["event"] for event in one_kind] == ["event", "end"]


def test_a_log_comes_whole_over_all_attempts_and_goes_on_where_it_stopped(one: Served) -> None:
    one.write_log(RAN, b"first\n")
    one.end(RAN, 1)
    one.bench.clock.sleep(120_000)
    one.tick(2)
    second = one.bench.attempt(JobId("ran-1")).id
    assert second == "ran-1.2"
    one.bench.agents["node-a"].run(second)
    one.write_log(second, b"second\n" * 20_000)
    one.tick()
    one.end(second)
    found = stream(one, "/jobs/ran-1/logs/stream", attempt="1")
    assert [json.loads(event["data"]) for event in found][-1] == {"why": "ran-1.1 has finished"}
    assert "".join(json.loads(event["data"])["text"] for event in found[:-1]) == "first\n"
    rest = stream(one, "/jobs/ran-1/logs/stream", last=found[0]["id"])
    assert "".join(json.loads(event["data"])["text"] for event in rest[:-1]) == "second\n" * 20_000
    assert len(rest) > 2
    middle = stream(one, "/jobs/ran-1/logs/stream", last=rest[0]["id"])
    assert middle == rest[1:]


def test_who_is_too_far_behind_is_told_what_it_missed(one: Served) -> None:
    text = b"".join(b"%07d\n" % number for number in range(40_000))
    one.write_log(RAN, text)
    one.end(RAN)
    gap, *pages, _ = stream(one, "/jobs/ran-1/logs/stream", max_lag=65_536, attempt="1")
    missed = json.loads(gap["data"])
    assert (gap["event"], missed["offset"]) == ("gap", 0)
    assert missed["missed_bytes"] == missed["next_offset"] == len(text) - 65_536
    assert "".join(json.loads(page["data"])["text"] for page in pages).encode() == text[missed["next_offset"] :]
    whole = stream(one, "/jobs/ran-1/logs/stream", attempt="1")
    assert "".join(json.loads(page["data"])["text"] for page in whole[:-1]).encode() == text


def test_what_happens_is_told_at_once(one: Served) -> None:
    async def live() -> None:
        events = streams._events(one.services, admin, None, "", one.bench.world.seq)
        waiting = asyncio.create_task(following(events, 1))
        await one.control.call(lambda controller: controller.submit(a_spec("later"), "", "", "ada"))
        (sent,) = await waiting
        assert json.loads(sent.data)["body"]["job"] == "later-2"
        log = streams._logs(one.services, admin, JobId("ran-1"), 0, RAN, 0, False, None)
        reading = asyncio.create_task(following(log, 1))
        chunk = Chunk("log", RAN, 0, 0, "aGkK")
        await one.ingest.take(one.bench.agents["node-a"].node, chunk)
        (page,) = await reading
        assert (json.loads(page.data)["text"], page.at) == ("hi\n", "ran-1.1@3")
        await events.aclose()
        await log.aclose()

    asyncio.run(live())


def test_many_readers_read_the_database_once(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    original = one.bench.store.events

    def counted(*args: Any) -> Any:
        asked.append(args)
        return original(*args)

    monkeypatch.setattr(one.bench.store, "events", counted)

    async def live() -> None:
        at = one.bench.world.seq
        readers = [streams._events(one.services, admin, None, "", at) for _ in range(100)]
        waiting = [asyncio.create_task(following(reader, 3)) for reader in readers]
        for name in ("a", "b", "c"):
            await one.control.call(lambda controller, name=name: controller.submit(a_spec(name), "", "", "ada"))  # type: ignore[misc]
        told = await asyncio.gather(*waiting)
        assert all(events == told[0] for events in told)
        for reader in readers:
            await reader.aclose()

    asyncio.run(live())
    assert 1 <= len(asked) <= 3


def test_the_tail_reaches_back_into_the_database(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.operate.control.tail.KEPT", 2)

    async def look() -> None:
        tail = one.services.tail
        begun = one.bench.world.seq
        assert await tail.beyond(begun) == ([], begun)
        for name in ("a", "b", "c", "d"):
            one.bench.submit(a_spec(name))
        end = one.bench.world.seq
        for after in range(end + 1):
            found, through = await tail.beyond(after)
            assert ([told.seq for told in found], through) == (list(range(after + 1, end + 1)), end)
        assert len(tail._kept) == 2

    asyncio.run(look())


def scope(path: str, one: Served) -> dict[str, Any]:
    headers = [(b"host", HOST.encode()), (b"authorization", f"Bearer {one.admin}".encode())]
    return {
        "type": "http",
        "asgi": {"spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"/api/v1{path}",
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": (HOST, 80),
    }


async def never() -> Mapping[str, Any]:
    await asyncio.Event().wait()
    return {}


def test_nothing_is_made_for_a_reader_who_does_not_read(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    one.write_log(RAN, b"x" * 65_536 * 20)
    read: list[int] = []
    original = streams._page

    def counted(*args: Any) -> Any:
        read.append(args[-1])
        return original(*args)

    monkeypatch.setattr(streams, "_page", counted)

    async def slow() -> None:
        taken: list[int] = []
        stuck = asyncio.Event()

        async def send(message: Mapping[str, Any]) -> None:
            taken.append(len(message.get("body", b"")))
            if len(taken) == 3:  # head, keep-alive, one page
                stuck.set()
                await asyncio.Event().wait()

        reading = asyncio.create_task(one.app(scope("/jobs/ran-1/logs/stream", one), never, send))  # type: ignore[arg-type]
        await stuck.wait()
        assert one.services.streams.count == 1
        for _ in range(200):
            await asyncio.sleep(0)
        assert read == [0]
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert one.services.streams.count == 0

    asyncio.run(slow())


def test_a_reader_who_takes_nothing_for_long_is_let_go(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "STALLED_S", 0.01)

    async def stalled() -> None:
        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        await one.app(scope("/events/stream", one), never, send)  # type: ignore[arg-type]
        assert one.services.streams.count == 0

    asyncio.run(stalled())


def test_a_stream_says_that_it_lives(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "KEEP_ALIVE_S", 0.0)

    async def live() -> None:
        pieces = sending._encoded(one.services.streams, streams._events(one.services, admin, None, "", one.bench.world.seq))
        async with asyncio.timeout(60):
            assert [await anext(pieces) for _ in range(3)] == [b": ping\n\n"] * 3

    asyncio.run(live())


def test_a_server_that_ends_ends_its_streams_first(one: Served) -> None:
    async def live() -> None:
        pieces = sending._encoded(one.services.streams, streams._events(one.services, admin, None, "", one.bench.world.seq))
        assert await anext(pieces) == b": ping\n\n"
        one.services.streams.closing = True
        async with asyncio.timeout(60):
            assert [piece async for piece in pieces] == []

    asyncio.run(live())


def test_an_idle_log_is_not_read_and_what_changes_wakes_it(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns by the clock alone look at who reads; the end of the attempt, and of the job, come by themselves."""
    read: list[int] = []
    original = streams._page

    def counted(*args: Any) -> Any:
        read.append(args[-1])
        return original(*args)

    monkeypatch.setattr(streams, "_page", counted)

    async def idle() -> None:
        monkeypatch.setattr(streams, "LOOK_S", 0.0)
        log = streams._logs(one.services, admin, JobId("ran-1"), 0, RAN, 0, False, None)
        async with asyncio.timeout(60):
            assert [await anext(log) for _ in range(50)] == [None] * 50
            assert read == [0]
            monkeypatch.setattr(streams, "LOOK_S", 3600.0)
            waiting = asyncio.create_task(following(log, 1))
            await one.control.call(lambda controller: controller.submit(a_spec("other"), "", "", "ada"))
            for _ in range(20):
                await asyncio.sleep(0)
            await asyncio.to_thread(one.bench.agents["node-a"].end, RAN, 0)
            for _ in range(2):
                snapshot = await one.control.call(lambda controller: controller.observe())
                await one.control.call(lambda controller, snapshot=snapshot: controller.carry_out(schedule(snapshot)))  # type: ignore[misc]
            (over,) = await waiting
        assert json.loads(over.data) == {"why": "ran-1 has finished"}

    asyncio.run(idle())
    assert len(read) <= 3, "once for each record of the job, and never for another's"


def test_a_stream_of_a_job_that_waits_begins_with_its_first_attempt(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOOK_S", 3600.0)
    job = one.bench.submit(a_spec("soon"))

    async def begins() -> None:
        log = streams._logs(one.services, admin, job, 0, None, 0, False, None)
        assert await anext(log) is None
        waiting = asyncio.create_task(following(log, 1))
        for _ in range(2):
            snapshot = await one.control.call(lambda controller: controller.observe())
            await one.control.call(lambda controller, snapshot=snapshot: controller.carry_out(schedule(snapshot)))  # type: ignore[misc]
        attempt = one.bench.attempt(job).id
        await asyncio.to_thread(one.bench.agents["node-a"].run, attempt)
        await one.ingest.take(one.bench.agents["node-a"].node, Chunk("log", attempt, 0, 0, "aGkK"))
        (page,) = await waiting
        assert page.at == f"{attempt}@3"
        await log.aclose()

    asyncio.run(begins())


def test_one_user_does_not_take_them_all(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever tokens; who has the home's own is not counted."""
    monkeypatch.setattr(sending, "OF_USER_MAX", 2)
    places = one.services.streams
    ada, again, ben = (
        Person(user=user, token=token, roles={"red": "viewer"}) for user, token in (("ada", "1"), ("ada", "2"), ("ben", "3"))
    )
    with contextlib.ExitStack() as open_now:
        first = open_now.enter_context(contextlib.ExitStack())
        first.enter_context(places.place(ada))
        open_now.enter_context(places.place(again))
        with pytest.raises(RateLimited, match="ada has 2 streams open; close some"), places.place(ada):
            pass
        for person in (ben, BUILT_IN, BUILT_IN, BUILT_IN):
            open_now.enter_context(places.place(person))
        first.close()
        with places.place(ada):
            assert places.count == 6
    assert (places.count, len(places._of_user)) == (0, 0)


def test_who_has_too_many_is_told_when_to_ask_again(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "OF_USER_MAX", 0)
    with one.http() as http:
        http.post("/api/v1/users", json={"user": "ada", "platform": True})
        token = http.post("/api/v1/tokens", json={"name": "test", "user": "ada"}).json()["token"]
    answer = one.http(token).get("/api/v1/jobs/ran-1/events/stream")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "15")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == "ada has 0 streams open; close some, or read pages"


def test_there_is_an_end_to_their_number(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "OPEN_MAX", 0)
    answer = one.http().get("/api/v1/jobs/ran-1/events/stream")
    assert (answer.status_code, "streams are open" in answer.json()["detail"]) == (503, True)


@pytest.mark.parametrize("path", ["/events/stream", "/jobs/ran-1/events/stream", "/jobs/ran-1/logs/stream"])
def test_what_no_stream_can_be_of_is_refused(one: Served, path: str) -> None:
    http = one.http()
    for last in ("x", "-1", "999999999999", "ran-1.1@x", "none-1.1@0", "ran-1.1@", "@", f"ran-1.1@{'9' * 30}"):
        answer = http.get(f"/api/v1{path}", headers={"Last-Event-ID": last})
        assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID"), last
    assert http.post(f"/api/v1{path}").headers["allow"] == "GET"
    assert one.http("wrong").get(f"/api/v1{path}").status_code == 401
    assert http.get(f"/api/v1{path}", params={"kind": "no", "rank": -1}).status_code == 422


def test_a_bell_that_rings_before_the_wait_is_heard() -> None:
    async def look() -> None:
        bell = Bell()
        ticket = bell.ticket()
        assert not await ticket.wait(0.0)
        bell.ring()
        assert await ticket.wait(60.0)
        assert not await bell.ticket().wait(0.0)

    asyncio.run(look())
