"""A log that is followed is told by the server where it tells; a server that ends, is full, or is older costs no line of it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.client import Client
from phalanx.client.asynchronous import AsyncClient
from phalanx.core import wire
from phalanx.core.errors import NotFound, Unauthorized
from phalanx.core.views import JobView, LogPage
from phalanx.operate.control.api.sending import Sent, end
from tests.recorded import JOB, TOKEN, RecordedServer, Said, finished_view, log_page, recorded_server, refusal, said

LOGS, STREAM = f"/jobs/{JOB}/logs", f"/jobs/{JOB}/logs/stream"
FIRST = log_page("one\n")
OVER = log_page("", 8, ended=True)


@pytest.fixture
def server() -> Iterator[RecordedServer]:
    with recorded_server() as made:
        made.view(f"/jobs/{JOB}", JobView, finished_view())
        yield made


def stream(*events: Sent) -> Said:
    body = b": ping\n\n" + b"".join(event.encoded() for event in events)
    return Said(200, body.decode(), "text/event-stream; charset=utf-8")


def told(text: str, offset: int) -> Sent:
    page = log_page(text, offset)
    return Sent("log", wire.dumps(LogPage, page), f"{page.attempt}@{page.next_offset}")


def followed(server: RecordedServer, **options: str) -> str:
    with Client(server.url, TOKEN, sleep=lambda _: None) as client:
        return "".join(page.text for page in client.follow_logs(JOB, **options))  # type: ignore[arg-type]


def test_it_is_told_from_where_the_first_page_ended(server: RecordedServer) -> None:
    server.view(LOGS, LogPage, FIRST, OVER)
    server.on("GET", STREAM, stream(told("two\n", 4), end("finished")))
    assert followed(server) == "one\ntwo\n"
    (asked,) = [one for one in server.asked if one.path.endswith("/stream")]
    assert (asked.last, asked.query, asked.token) == (f"{FIRST.attempt}@4", {"rank": "0"}, TOKEN)
    assert len(server.paths("GET")) == 4, "a page, the stream, and that nothing follows it"


def test_a_stream_that_breaks_goes_on_from_the_last_event(server: RecordedServer) -> None:
    server.view(LOGS, LogPage, FIRST, log_page("", 12, ended=True))
    server.on("GET", STREAM, stream(told("two\n", 4)), stream(), stream(told("six\n", 8), end("finished")))
    assert followed(server) == "one\ntwo\nsix\n"
    asked = [one.last.rpartition("@")[2] for one in server.asked if one.path.endswith("/stream")]
    assert asked == ["4", "8", "8"]


@pytest.mark.parametrize(
    "answer",
    [
        refusal(404, "path", "/logs/stream", "see /openapi.json"),
        refusal(429, detail="ada has 100 streams open"),
        refusal(503, detail="1000 streams are open"),
        Said(200, "{}"),
    ],
)
def test_who_is_told_nothing_asks(server: RecordedServer, answer: Said) -> None:
    server.view(LOGS, LogPage, FIRST, log_page("two\n", 4), OVER)
    server.on("GET", STREAM, answer)
    assert followed(server) == "one\ntwo\n"


def test_a_token_that_ends_meanwhile_is_no_end_of_the_log(server: RecordedServer) -> None:
    refused = refusal(401, "Authorization", "", "log in again")
    server.on("GET", LOGS, said(LogPage, FIRST), refused)
    server.on("GET", STREAM, stream(end("this token does not open it any more")))
    with pytest.raises(Unauthorized):
        followed(server)


def test_what_is_not_there_is_not_waited_for(server: RecordedServer) -> None:
    server.on("GET", LOGS, refusal(404, "rank", "9", "it has the ranks 0 to 1"))
    with pytest.raises(NotFound, match="rank"):
        followed(server)
    assert not [one for one in server.asked if one.path.endswith("/stream")]


def test_it_is_told_on_an_event_loop_too(server: RecordedServer) -> None:
    server.view(LOGS, LogPage, FIRST, OVER)
    server.on("GET", STREAM, stream(told("two\n", 4), end("finished")))

    async def follow() -> str:
        async with AsyncClient(server.url, TOKEN) as client:
            return "".join([page.text async for page in client.follow_logs(JOB)])

    assert asyncio.run(follow()) == "one\ntwo\n"
    assert [one.path for one in server.asked].count(f"/api/v1{STREAM}") == 1


def test_who_stops_reading_closes_the_stream(server: RecordedServer, tmp_path: Path) -> None:
    server.view(LOGS, LogPage, FIRST)
    server.on("GET", STREAM, stream(told("two\n", 4), told("six\n", 8)))
    with Client(server.url, TOKEN) as client:
        pages = client.follow_logs(JOB)
        assert [next(pages).text for _ in range(2)] == ["one\n", "two\n"]
        pages.close()  # type: ignore[attr-defined]
        assert client.job(JOB).id == JOB, "the connection is free again"
