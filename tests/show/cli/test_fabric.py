"""`phalanx fabric` as people type it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.core import wire
from phalanx.core.devices import Device
from phalanx.core.errors import SpecError
from phalanx.core.fabric_test import REPORT, FabricAsked, FabricReport, progress_line
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.messages import RankExit
from phalanx.core.views import ArtifactView, JobView, LogPage, NodeView, PolicyView
from phalanx.show.cli.fabric_room import room
from tests.recorded import Asked, Said, attempt_view, finished_view, job_view, log_page, node_view, refusal, said
from tests.show.cli.phalanx_under_test import FABRIC
from tests.show.cli.terminal import Terminal

JOB = JobId("fabric-test-3")
BODY = wire.dumps(FabricReport, FABRIC)
NODES = {"nodes": [{"match": "rack1-*", "labels": {"block": "b1", "price": "x"}}, {"match": "*", "spot": True}]}


def test_here_shows_all_of_it_and_says_by_its_exit_code_that_something_is_slow(terminal: Terminal) -> None:
    shown = terminal("fabric", "test", "--here")
    assert shown.code == 1, shown.err
    assert shown.out.splitlines() == [
        "4 ranks on 1 node (node-a\\x1b[2J), cpu",
        "gloo, torch 2.13.0, 1970-01-01 00:00:01 UTC",
        "",
        "Tiers",
        "  TIER  GROUPS  RANKS EACH  HARDWARE GB/s  BY",
        "  node       1           4            450  18 NVLinks",
        "",
        "Collectives",
        "  TIER  COLLECTIVE     SIZE        TIME  BUS GB/s  OF HARDWARE  SLOWEST GROUP",
        "  node  all_reduce  1.0 MiB  1,000.0 us       1.5        50.0%  -",
        "",
        "What n bytes cost: latency + n / rate",
        "  TIER  COLLECTIVE  LATENCY  RATE GB/s  WORST ERROR",
        "  node  all_reduce  20.0 us          1          10%",
        "",
        "Slower than others of its kind",
        "  KIND  NAME      REACHES  EVIDENCE",
        "  gpu   node-a:2      25%  its 3 pairs: at most 1 GB/s",
        "Note: a note.",
    ]
    again = terminal("fabric", "show", "-o", "json")
    assert json.loads(again.out) == wire.plain(FabricReport, FABRIC), "it is kept in the home"
    even = terminal("fabric", "test", "--here", "--gpus", "2")
    assert even.code == 0 and "Nothing is slower than others of its kind, by 6 pairs of ranks." in even.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--sizes", "1MiB,big"), "--sizes is 'big': write a size such as"),
        (("--sizes", ","), "--sizes is ',': write sizes such as 8KiB,1MiB, or leave it out"),
        (("--sizes", ""), "--sizes is '': write sizes such as"),
        (("--sizes", "2"), "write sizes from 4 bytes to 8GiB"),
        (("--sizes", "9GiB"), "write sizes from 4 bytes to 8GiB"),
        (("--sizes", ",".join(map(str, range(4, 40)))), "--sizes is '36 sizes': give at most 32"),
        (("--collectives", "all_reduce,gossip"), "--collectives is 'gossip': write some of all_reduce,all_gather"),
        (("--collectives", ""), "write some of all_reduce,all_gather"),
        (("--collectives", ","), "--collectives is '': write some of all_reduce,all_gather"),
        (("--seconds", "0"), "--seconds is 0.0: write a number above 0, at most 60"),
        (("--seconds", "nan"), "--seconds is nan: write a number above 0, at most 60"),
        (("--here", "--nodes", "2"), "--nodes is 2: this machine is one node"),
        (("--here", "--gpus", "H100:2"), "--gpus is 'H100:2': write a number of this machine's GPUs"),
        (("--here", "--gpus", "1"), "--gpus is 1: a fabric is tested by two ranks or more"),
        (("--here", "--queue", "ops"), "--queue is 'ops': with --here there is no job"),
        (("--here", "--queue", "default"), "--queue is 'default': with --here there is no job"),
        (("--gpus", ""), "--gpus is '': write a number such as 8"),
        (("--gpus", "many"), "--gpus is 'many': write TYPE:COUNT"),
        (("--gpus", "0.5"), "--gpus is '0.5': write whole GPUs"),
        (("--gpus", "1"), "--gpus is '1': a fabric is tested by two ranks or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(terminal: Terminal, words: tuple[str, ...], says: str) -> None:
    terminal.server.view("/nodes", tuple[NodeView, ...], (node_view(),))
    shown = terminal("fabric", "test", *words)
    assert shown.code == 2 and says in shown.err and not shown.out
    assert terminal.server.paths("POST") == []


def recorded(terminal: Terminal, last: JobView) -> None:
    """A platform on which the job waits, runs and ends."""
    running = job_view(id=JOB, attempts=(attempt_view(1),), progress=None)
    waiting = job_view(id=JOB, state="pending", why="waits for 2 devices", attempts=(), progress=None)
    terminal.server.view("/nodes", tuple[NodeView, ...], (node_view(), node_view(node="b", drained="loud")))
    terminal.server.view("/policy", PolicyView, PolicyView(policy=NODES))
    terminal.server.on("POST", "/jobs", said(JobView, waiting))
    terminal.server.view(f"/jobs/{JOB}", JobView, waiting, running, last)
    text = progress_line(3, 40, "pairs") + "\n"

    def log(asked: Asked) -> Said:
        return said(LogPage, log_page(text[int(asked.query["offset"]) :], int(asked.query["offset"]), ended=True, attempt=1))

    terminal.server.on("GET", f"/jobs/{JOB}/logs", log)
    artifact = ArtifactView(
        attempt=AttemptId(f"{JOB}.1"), name=REPORT, sha256=hashlib.sha256(BODY.encode()).hexdigest(), size_bytes=len(BODY), at_ms=9,
    )  # fmt: skip
    late = refusal(404, "artifact", REPORT, "has not come")
    terminal.server.on("GET", f"/jobs/{JOB}/artifact", late, said(ArtifactView, artifact))
    terminal.server.on("GET", f"/blobs/{artifact.sha256}", Said(200, BODY))


def test_a_job_over_all_that_is_up_measures_and_its_report_is_fetched(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.show.cli.fabric.POLL_S", 0.01)
    recorded(terminal, finished_view(id=JOB, progress=None))
    shown = terminal("fabric", "test", "--sizes", "1MiB,4KiB,1MiB", "--queue", "ops", "-o", "json")
    assert shown.code == 1, shown.err
    assert json.loads(shown.out) == wire.plain(FabricReport, FABRIC)
    assert "Submitted fabric-test-3: 1 x cpu:2" in shown.err and "fabric-test-3 waits for 2 devices" in shown.err
    (post,) = [one for one in terminal.server.asked if one.method == "POST"]
    spec = json.loads(post.body)["spec"]
    assert (spec["num_nodes"], spec["resources"]["gpus"], spec["queue"], spec["max_restarts"]) == (1, "cpu:2", "ops", 0)
    assert spec["entrypoint"][-1] == "phalanx.job.train.fabric_test"
    asked = wire.loads(FabricAsked, spec["hyperparameters"]["asked"])
    assert asked == FabricAsked(sizes=(4096, 2**20), places=(("rack1-*", {"block": "b1"}),))
    assert (terminal.home / "fabric" / f"{JOB}.json").read_text() == BODY
    assert json.loads(terminal("fabric", "show", str(JOB), "-o", "json").out)["pairs"] == 6


def test_a_job_that_fails_shows_why_and_leaves_no_report(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.show.cli.fabric.POLL_S", 0.01)
    ended = attempt_view(1, ended_ms=9_000, exits=(RankExit(0, 1, 8_000, first=True), RankExit(1, -15, 8_100)))
    recorded(terminal, finished_view("failed", id=JOB, detail="rank 0 exited 1", attempts=(ended,), progress=None))
    shown = terminal("fabric", "test")
    assert shown.code == 5 and not shown.out, "1 says that something is slow, and a script may drain it"
    assert "rank 0 exited 1" in shown.err and progress_line(3, 40, "pairs") in shown.err
    assert not (terminal.home / "fabric").exists()


def test_show_says_what_is_missing(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"points": 1}')
    for words, code, says in (
        ((), 4, "has no result yet; run `phalanx fabric test`"),
        (("lm-1",), 4, "JOB is 'lm-1': left no report"),
        ((str(tmp_path / "none.json"),), 4, "is not there; name a result"),
        ((str(tmp_path / "other.json"),), 2, "is no result of `phalanx fabric test`"),
        ((str(tmp_path) + "/",), 2, "cannot be read (Is a directory)"),
    ):
        shown = terminal("fabric", "show", *words)
        assert shown.code == code and says in shown.err, shown.err


def test_show_leaves_out_what_cannot_be_read_and_says_so(terminal: Terminal) -> None:
    folder = terminal.home / "fabric"
    folder.mkdir()
    (folder / "new-2.json").write_text('{"made_ms": 9')
    (folder / "odd-3.json").mkdir()
    assert "has no result yet" in terminal("fabric", "show").err
    (folder / "old-1.json").write_text(BODY)
    shown = terminal("fabric", "show", "-o", "json")
    assert shown.code == 0 and json.loads(shown.out) == wire.plain(FabricReport, FABRIC)
    assert f"Left out {folder}/new-2.json: is no result" in shown.err and "odd-3.json: Is a directory" in shown.err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"pairs": 0, "judged": 0},
            "Links were not judged: no pairs of ranks were measured. By itself no GPU is slower than the others.",
        ),
        ({"pairs": 0, "judged": 0, "slow": FABRIC.slow}, "Links were not judged: no pairs of ranks were measured."),
        (
            {"pairs": 1, "judged": 0, "num_ranks": 2},
            "Links were not judged: no kind of them joins three ranks, and two cannot be compared.",
        ),
        ({"pairs": 1, "judged": None, "num_ranks": 2}, "Links were not judged: no kind"),
        ({"judged": 4}, "Nothing is slower than others of its kind, by 4 pairs of ranks."),
        ({"judged": None}, "Nothing is slower than others of its kind, by 6 pairs of ranks."),
    ],
)
def test_links_that_nobody_compared_are_not_called_sound(terminal: Terminal, changes: dict[str, Any], says: str) -> None:
    file = terminal.home / "report.json"
    file.write_text(wire.dumps(FabricReport, replace(FABRIC, **({"slow": ()} | changes))))
    shown = terminal("fabric", "show", str(file)).out
    assert says in shown and ("Nothing is slower" in shown) == ("Nothing is slower" in says)


def nodes(*kinds: str, **changes: Any) -> tuple[NodeView, ...]:
    """One of each kind, of 8 GPUs."""
    made = [tuple(Device(index, kind, kind) for index in range(8)) for kind in kinds]
    return tuple(node_view(node=f"n{number}", devices=devices, **changes) for number, devices in enumerate(made))


def test_what_is_not_said_is_all_that_is_up_of_one_kind() -> None:
    fleet = nodes("H100", "H100", "A100-80")
    assert room(fleet, "", None) == ("H100:8", 2) and room(fleet, "A100-80:4", None) == ("A100-80:4", 1)
    assert room(fleet, "4", None) == ("4", 3) and room(fleet, "", 1) == ("H100:8", 1) and room(fleet, "1", 2) == ("1", 2)
    assert room(fleet, "B200:8", None) == ("B200:8", 1), "the platform says why there are none"
    with pytest.raises(SpecError, match=r"^--nodes: no node is up"):
        room(nodes("H100", state="away"), "", None)
    with pytest.raises(SpecError, match=r"^--gpus: 1 x H100:1 is one rank; a fabric is tested by two ranks or more"):
        room((node_view(devices=(Device(0, "H100", "H100"),)),), "", None)
