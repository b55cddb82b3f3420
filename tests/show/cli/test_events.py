"""events: the log as lines, in JSON, and as it grows."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.core import wire
from phalanx.core.events import AttemptEnded, EventBody, NodeAway, NodeDrained
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.views import EventView
from tests.recorded import JOB, RecordedServer, recorded_server, refusal, said
from tests.show.cli.terminal import Terminal
from tests.show.cli.test_following import COMMAND, DEADLINE_S, on_terminal, started

NODE = NodeId("node-a")


def seen(seq: int, body: EventBody) -> EventView:
    return EventView(seq=seq, at_ms=seq * 1000, kind=body.kind, job=getattr(body, "job", None), body=wire.plain(EventBody, body))


AWAY = seen(4, NodeAway(NODE))
DRAINED = seen(7, NodeDrained(NODE, "a fan is loud " * 30, "ann"))
ENDED = seen(9, AttemptEnded(JobId(JOB), AttemptId(f"{JOB}.1"), False, False, "rank 1 was killed by SIGKILL", ()))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RecordedServer]:
    with recorded_server(tmp_path / "home") as recorded:
        yield recorded


def test_an_event_is_a_line(terminal: Terminal) -> None:
    terminal.server.view("/events", tuple[EventView, ...], (AWAY, ENDED))
    shown = terminal("events")
    assert shown.out.splitlines() == [
        "1970-01-01 00:00:04  node node-a       away: nothing was heard of it",
        "1970-01-01 00:00:09  tiny-lm-7.1       ended: rank 1 was killed by SIGKILL",
    ]
    assert terminal.server.asked[0].query == {"after": "0", "limit": "100", "newest": "true"}
    assert terminal("events", "-o", "table").out == shown.out


def test_a_jobs_events_filtered_and_as_data(terminal: Terminal) -> None:
    terminal.server.view(f"/jobs/{JOB}/events", tuple[EventView, ...], (ENDED,))
    shown = terminal("events", JOB, "--kind", "attempt_ended", "--limit", "5", "--since", "2h", "-o", "json")
    assert json.loads(shown.out) == wire.plain(tuple[EventView, ...], (ENDED,))
    query = terminal.server.asked[0].query
    assert (query["kind"], query["limit"], "since_ms" in query) == ("attempt_ended", "5", True)


def test_nothing_that_happened_is_nothing(terminal: Terminal) -> None:
    terminal.server.view("/events", tuple[EventView, ...], ())
    assert (terminal("events").out, terminal("events", "-o", "json").out) == ("", "[]\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--since", "soon"), 2, "Error: --since is 'soon': write a duration"),
        (("-o", "xml"), 2, "'xml' is not one of"),
        (("--limit", "0"), 2, "--limit"),
        (("--kind", "odd"), 2, "Error: kind is 'odd': write one of job_submitted"),
        (("../etc",), 4, "Error: job is '../etc': no such job"),
    ],
)
def test_bad_input_is_one_clear_message(terminal: Terminal, arguments: tuple[str, ...], code: int, message: str) -> None:
    terminal.server.on("GET", "/events", refusal(422, "kind", "odd", "write one of job_submitted", title="SpecError"))
    shown = terminal("events", *arguments)
    assert (shown.code, shown.out) == (code, "")
    assert message in shown.err and "Traceback" not in shown.err


def follow(server: RecordedServer, tmp_path: Path, *options: str, lines: int) -> tuple[int, list[str], str]:
    """Follows until that many lines came, then Ctrl-C: exit code, lines, and what was said beside them."""
    with started(tmp_path, *COMMAND, "events", "-f", *options) as process:
        assert process.stdout is not None and process.stderr is not None
        got = [process.stdout.readline().decode() for _ in range(lines)]
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=DEADLINE_S)
    assert rest == b""
    return process.returncode, got, err.decode()


def test_following_goes_on_from_what_was_shown(server: RecordedServer, tmp_path: Path) -> None:
    server.view("/events", tuple[EventView, ...], (AWAY,), (), (DRAINED,), (ENDED,), ())
    code, lines, err = follow(server, tmp_path, lines=3)
    assert (code, err) == (130, "Stopped looking; nothing else was stopped.\n")
    assert [line[21:37].strip() for line in lines] == ["node node-a", "node node-a", "tiny-lm-7.1"]
    assert [one.query["after"] for one in server.asked[:5]] == ["0", "4", "4", "7", "9"][: len(server.asked)]
    assert "newest" not in server.asked[1].query


def test_following_what_never_happened_yet_seeks_from_the_newest_event_on(server: RecordedServer, tmp_path: Path) -> None:
    server.view("/events", tuple[EventView, ...], (DRAINED,), (), (), (ENDED,), ())
    assert follow(server, tmp_path, "--kind", "attempt_ended", lines=1)[0] == 130
    assert [one.query["after"] for one in server.asked[:4]] == ["0", "0", "7", "7"]


def test_followed_events_as_json_are_a_line_each(server: RecordedServer, tmp_path: Path) -> None:
    server.view("/events", tuple[EventView, ...], (AWAY,), (ENDED,), ())
    _, lines, _ = follow(server, tmp_path, "-o", "json", lines=2)
    assert [json.loads(line)["seq"] for line in lines] == [4, 9]


def test_a_server_that_is_away_is_waited_for(server: RecordedServer, tmp_path: Path) -> None:
    known = said(tuple[EventView, ...], (AWAY,))
    later = said(tuple[EventView, ...], (ENDED,))
    server.on("GET", "/events", known, *[refusal(502, detail="starting")] * 6, later, said(tuple[EventView, ...], ()))
    code, lines, err = follow(server, tmp_path, lines=2)
    assert (code, len(lines)) == (130, 2)
    assert err.splitlines()[:2] == [
        "The server does not answer; the ranks go on without it. Waiting for it (`phalanx up` starts it).",
        "The server is back.",
    ]


def test_a_terminal_gets_colours_and_lines_that_fit(server: RecordedServer, tmp_path: Path) -> None:
    server.view("/events", tuple[EventView, ...], (AWAY, DRAINED))
    code, seen_there = on_terminal(tmp_path, *COMMAND, "events")  # 120 columns
    assert code == 0
    away, drained = seen_there.decode().splitlines()
    assert away == "\x1b[31m1970-01-01 00:00:04  node node-a       away: nothing was heard of it\x1b[0m"
    plain = drained.removeprefix("\x1b[33m").removesuffix("\x1b[0m")
    assert plain.endswith("…") and len(plain) <= 120


def test_a_reader_that_leaves_early_is_no_failure(server: RecordedServer, tmp_path: Path) -> None:
    server.view("/events", tuple[EventView, ...], (DRAINED,) * 900)
    with started(tmp_path, *COMMAND, "events", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert (process.wait(DEADLINE_S), process.stderr.read()) == (0, b"")
