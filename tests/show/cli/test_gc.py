"""`phalanx gc` against recorded answers: what it asks for, how it waits, what people and programs see."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.core.ids import JobId
from phalanx.core.views import GcAmount, GcRequest, GcView
from phalanx.show.cli.main import run
from tests.recorded import Asked, RecordedServer, Said, recorded_server, refusal, said
from tests.show.cli.phalanx_under_test import TOOLS
from tests.show.cli.test_following import COMMAND, DEADLINE_S, started


def view(state: str = "done", **changes: object) -> GcView:
    values: dict[str, object] = {
        "dry_run": False,
        "older_than_ms": 1,
        "started_ms": 5,
        "finished_ms": None if state == "running" else 9,
        "taken": (GcAmount(kind="logs", count=2, size_bytes=2048),),
        "kept": (GcAmount(kind="blobs", count=1, size_bytes=10, why="its job is open"),),
        "jobs": (JobId("tiny-1"),),
        "problems": (),
    }
    return GcView(state=state, **{**values, **changes})  # type: ignore[arg-type] # a test's shorthand


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedServer]:
    monkeypatch.setenv("PHALANX_HOME", str(tmp_path))
    monkeypatch.delenv("PHALANX_URL", raising=False)
    with recorded_server(tmp_path) as recorded:
        yield recorded


def test_it_waits_for_the_end_and_shows_what_went_and_what_stays(
    server: RecordedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.on("POST", "/gc", said(GcView, view("running", taken=()), 202))
    server.view("/gc", GcView, view("running", taken=()), view())
    assert run(TOOLS, ["gc", "--older-than", "12h"]) == 0
    out = capsys.readouterr().out
    assert "Removed 2.0 KiB of 1 job." in out
    assert "its job is open" in out
    assert json.loads(server.asked[0].body) == {"older_than": "12h", "dry_run": False}


def test_ctrl_c_stops_watching_and_says_that_the_collection_goes_on(tmp_path: Path) -> None:
    running = said(GcView, view("running"), 202)
    with recorded_server(tmp_path / "home") as server:

        def interrupted(_: Asked) -> Said:
            process.send_signal(signal.SIGINT)
            return running

        server.on("POST", "/gc", running)
        server.on("GET", "/gc", interrupted, running)
        with started(tmp_path, *COMMAND, "gc") as process:
            out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (130, b"", b"Stopped watching; the collection goes on.\n")


def test_json_is_the_view(server: RecordedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/gc", said(GcView, view(dry_run=True, problems=("/x: no",)), 202))
    assert run(TOOLS, ["gc", "--dry-run", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["dry_run"], shown["jobs"], shown["problems"]) == (True, ["tiny-1"], ["/x: no"])
    assert shown["taken"] == [{"kind": "logs", "count": 2, "size_bytes": 2048, "why": ""}]
    assert json.loads(server.asked[0].body) == {"older_than": GcRequest().older_than, "dry_run": True}


def test_problems_and_an_empty_home_have_words(server: RecordedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/gc", said(GcView, view(taken=(), kept=(), jobs=(), problems=("/x\x1b[31m: no",)), 202))
    assert run(TOOLS, ["gc"]) == 0
    out = capsys.readouterr().out
    assert "Removed nothing." in out
    assert "/x" in out
    assert "\x1b" not in out


def test_a_collection_that_failed_may_be_run_again(server: RecordedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/gc", said(GcView, view("failed", taken=(), error="s3://b: away"), 202))
    assert run(TOOLS, ["gc"]) == 3
    assert "s3://b: away; run it again" in capsys.readouterr().err


def test_a_server_that_was_started_anew_meanwhile_is_told(server: RecordedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/gc", said(GcView, view("running"), 202))
    for answer in (said(GcView, view(started_ms=77)), refusal(404, "gc", "", "none was begun", title="NotFound")):
        server.on("GET", "/gc", answer)
        assert run(TOOLS, ["gc"]) == 3
        assert "started anew meanwhile" in capsys.readouterr().err


def test_another_collection_is_a_conflict(server: RecordedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/gc", refusal(409, "gc", "running", "another collection runs", title="Conflict"))
    assert run(TOOLS, ["gc"]) == 2
    assert "another collection runs" in capsys.readouterr().err


def test_a_limit_that_is_no_duration_is_refused_before_anything_is_sent(
    server: RecordedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(TOOLS, ["gc", "--older-than", "soon"]) == 2
    assert "--older-than" in capsys.readouterr().err
    assert server.asked == []
