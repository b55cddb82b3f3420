"""Each command against a real HTTP server with recorded answers: what people see, JSON, YAML, exit codes, errors."""

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.core import wire
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import RankExit
from phalanx.core.views import (
    CheckpointView,
    JobView,
    LedgerView,
    LogPage,
    ModelView,
    Progress,
    RankView,
    StatusView,
    SubmitRequest,
    WhyView,
)  # fmt: skip
from phalanx.show.cli.follow import progress_numbers
from phalanx.show.cli.job_page import gang_devices, submitted_page
from phalanx.show.cli.main import run
from tests.recorded import (
    JOB,
    RecordedServer,
    finished_view,
    job_view,
    killed_attempt,
    ledger_view,
    log_page,
    model_view,
    refusal,
    said,
    status_view,
    why_view,
)
from tests.show.cli.phalanx_under_test import TOOLS
from tests.show.cli.terminal import Terminal

DAY = 1_795_824_000_000  # 2026-11-28
PACK_SHA = hashlib.sha256(b"packed code").hexdigest()


@pytest.fixture
def phalanx(terminal: Terminal) -> Terminal:
    server = terminal.server
    server.view("/status", StatusView, status_view())
    server.view("/jobs", tuple[JobView, ...], (finished_view(), job_view()))
    server.view(f"/jobs/{JOB}", JobView, job_view())
    server.view(f"/jobs/{JOB}/why", WhyView, why_view())
    server.view("/ledger", LedgerView, ledger_view())
    server.view("/models", tuple[ModelView, ...], (model_view(),))
    server.view("/models/tiny-lm", tuple[ModelView, ...], (model_view(), model_view(version=2)))
    server.view("/models/tiny-lm/1", ModelView, model_view())
    return terminal


VIEWS: list[tuple[tuple[str, ...], Any, Any]] = [
    (("status",), StatusView, status_view()),
    (("up",), StatusView, status_view()),
    (("ls",), tuple[JobView, ...], (finished_view(), job_view())),
    (("describe", JOB), JobView, job_view()),
    (("why", JOB), WhyView, why_view()),
    (("ledger",), LedgerView, ledger_view()),
    (("ledger", JOB, "--since", "2h"), LedgerView, ledger_view()),
    (("model", "ls"), tuple[ModelView, ...], (model_view(),)),
    (("model", "show", "tiny-lm:1"), ModelView, model_view()),
    (("model", "show", "tiny-lm"), ModelView, model_view(version=2)),
]


@pytest.mark.parametrize(("arguments", "kind", "value"), VIEWS)
def test_json_and_yaml_are_the_view_and_nothing_else(phalanx: Terminal, arguments: tuple[str, ...], kind: Any, value: Any) -> None:
    as_json, as_yaml = phalanx(*arguments, "-o", "json"), phalanx(*arguments, "-o", "yaml")
    assert (as_json.code, as_yaml.code) == (0, 0)
    assert json.loads(as_json.out) == yaml.safe_load(as_yaml.out) == wire.plain(kind, value)


def test_status_says_that_there_is_no_gpu(phalanx: Terminal) -> None:
    out = phalanx("status").out
    assert "1 of 2 held; CPU slots (this machine has no GPU)" in out
    assert "node-a" in out
    assert "2 x CPU slot" in out
    assert "1 running" in out


def test_up_and_down_speak_on_stderr(phalanx: Terminal) -> None:
    assert phalanx("up").err == "Phalanx is up.\n"
    assert phalanx("up", "--cpu-slots", "1").err == "Phalanx was up already.\n"
    refused = phalanx("down")
    assert (refused.code, refused.out) == (2, "")
    assert "add --force" in refused.err
    forced = phalanx("down", "--force", "-o", "json")
    assert json.loads(forced.out) == {"home": str(phalanx.home), "stopped": True, "left": ["rack2", "rack3"]}
    assert "Ranks may still run on rack2, rack3: `phalanx down --force` there" in forced.err


def test_a_backup_and_a_restore_say_what_they_hold(phalanx: Terminal, tmp_path: Path) -> None:
    made = phalanx("backup", str(tmp_path / "b"))
    assert (made.code, f"{tmp_path / 'b'}, 2.0 KiB" in made.out) == (0, True)
    assert "40 rows, up to event 7; schema 0004" in made.out
    restored = phalanx("restore", "b", "--database", "postgresql://ada@db/x", "-o", "json")
    assert json.loads(restored.out)["database"] == "postgresql://ada@db/x"
    assert "A standby waits in" in phalanx("up", "--standby").err


def test_ls_has_a_line_a_job(phalanx: Terminal) -> None:
    lines = phalanx("ls", "--state", "running", "--limit", "9").out.splitlines()
    assert lines[0].split() == ["JOB", "STATE", "STEP", "DEVICES", "QUEUE", "PRIORITY", "RESTARTS", "AGE", "WHY"]
    assert "succeeded" in lines[1]
    assert "37/400" in lines[2]
    assert "CPU slots" in lines[3]
    assert phalanx.server.asked[0].query == {"state": "running", "limit": "9"}
    assert phalanx("ls", "--state", "failed").code == 0, "as the list shows it"


def test_an_empty_ls_says_what_to_do(phalanx: Terminal) -> None:
    phalanx.server.view("/jobs", tuple[JobView, ...], ())
    assert "phalanx submit" in phalanx("ls").out
    assert phalanx("ls", "--state", "running").out == "No job matches --state running; `phalanx ls` shows every job.\n"


def test_a_failed_job_names_the_log_to_look_at_and_json_does_not(phalanx: Terminal) -> None:
    ended = dataclasses.replace(killed_attempt(), detail="rank 1 was killed by SIGKILL")
    phalanx.server.view(f"/jobs/{JOB}", JobView, finished_view("failed", attempts=(ended,)))
    phalanx.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="finished", sentence="failed: rank 1 was killed by SIGKILL"))
    for command in ("why", "describe"):
        assert f"`phalanx logs {JOB} --rank 1`" in phalanx(command, JOB).out
        assert "phalanx logs" not in phalanx(command, JOB, "-o", "json").out


def test_an_outcome_is_not_said_twice(phalanx: Terminal) -> None:
    for detail, text in (("cancelled", "cancelled"), ("cancelled while waiting", "cancelled while waiting")):
        view = finished_view("cancelled", detail=detail, model=None, restarts=0)
        phalanx.server.view(f"/jobs/{JOB}", JobView, view)
        phalanx.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="finished", sentence=f"cancelled: {detail}"))
        assert phalanx("wait", JOB).out == f"{JOB} {text} (restarts 0)\n"
        assert phalanx("why", JOB).out == f"{JOB} is finished: {text}\n"


def test_help_is_a_command_too(phalanx: Terminal) -> None:
    assert phalanx("help") == phalanx("--help")
    assert phalanx("help", "model", "show") == phalanx("model", "show", "--help")


def test_an_empty_home_is_never_the_current_folder(phalanx: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for command in (("status",), ("up",), ("down",), ("ls",)):
        shown = phalanx(*command, "--home", "")
        assert (shown.code, shown.err) == (2, "Error: --home is '': name a folder, or leave the option out\n")
        shown = phalanx(*command, "--home", "~nobody-here/x")
        assert (shown.code, "--home is '~nobody-here/x': begins with a user that this machine does not know" in shown.err) == (
            2,
            True,
        )
    monkeypatch.setenv("PHALANX_HOME", "~nobody-here/x")
    assert phalanx("status").err == "Error: PHALANX_HOME is '~nobody-here/x': begins with a user that this machine does not know\n"
    monkeypatch.setenv("PHALANX_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    assert str(tmp_path / "nobody" / ".phalanx") in phalanx("status").err


def test_the_help_of_what_acts_on_this_machine_speaks_of_no_url(phalanx: Terminal) -> None:
    assert "PHALANX_URL" not in phalanx("up", "--help").out + phalanx("down", "--help").out
    assert "PHALANX_URL" in phalanx("status", "--help").out


def test_describe_shows_everything(phalanx: Terminal) -> None:
    out = phalanx("describe", JOB).out
    for part in (
        "running", "runs on 2 devices of node-a", "CPU slots", "37 of 400", "rank 1 SIGKILL first, rank 0 SIGTERM", "after 20",
        "d1d1d1d1d1d1", "3.0 MiB", "python, train.py", "env.LEVEL", "5,120", "1m 20s",
    ):  # fmt: skip
        assert part in out, part


def test_what_a_fallen_rank_said_last_is_shown_short_in_the_list_and_whole_with_the_job(phalanx: Terminal) -> None:
    """Steering characters are escaped. What the sentence on the whole job says is not said again."""
    said_, last = f"ValueError: {'x' * 200}\x1b[31m end", "no more data"
    attempts = tuple(
        dataclasses.replace(
            killed_attempt(), attempt=AttemptId(f"{JOB}.{number}"), detail=f"rank 1 exited with code 1: {words}",
            exits=(RankExit(0, -15, 9_000), RankExit(1, 1, 8_000, first=True, said=words)),
        ) for number, words in enumerate((said_, last), 1)
    )  # fmt: skip
    view = finished_view("failed", attempts=attempts, detail=attempts[1].detail)
    phalanx.server.view(f"/jobs/{JOB}", JobView, view)
    phalanx.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="finished", sentence=f"failed: {view.detail}"))
    out = phalanx("describe", JOB).out
    assert f"failed: rank 1 exited with code 1: {last}" in out
    assert f"  {JOB}.1, rank 1  ValueError: {'x' * 200}\\x1b[31m end\n" in out
    assert f"{JOB}.2, rank 1" not in out
    phalanx.server.view("/jobs", tuple[JobView, ...], (finished_view("failed", detail=attempts[0].detail),))
    row = phalanx("ls").out.splitlines()[1]
    assert f"rank 1 exited with code 1: ValueError: {'x' * 100}" in row and row.endswith("x…")
    assert json.loads(phalanx("describe", JOB, "-o", "json").out)["attempts"][0]["exits"][1]["said"] == said_


def test_a_diverged_loss_is_shown_and_not_a_failure(phalanx: Terminal) -> None:
    progress = Progress(step=3, total_steps=9, loss=float("nan"), tokens_per_s=float("inf"), mfu=0.0, eta_ms=None)
    phalanx.server.view(f"/jobs/{JOB}", JobView, job_view(progress=progress))
    assert "Loss      nan" in phalanx("describe", JOB).out
    shown = json.loads(phalanx("describe", JOB, "-o", "json").out, parse_constant=pytest.fail)
    assert shown["progress"]["loss"] == "NaN"


def test_a_wait_for_data_is_shown_with_its_cause(phalanx: Terminal) -> None:
    assert "Data wait" not in phalanx("describe", JOB).out
    seen = Progress(
        step=3, total_steps=9, loss=2.0, tokens_per_s=9.0, mfu=0.0, eta_ms=None, data_wait_ms=12, data_wait_cause="read"
    )
    phalanx.server.view(f"/jobs/{JOB}", JobView, job_view(progress=seen))
    assert "12 ms of this step (read)" in phalanx("describe", JOB).out


def test_the_speed_of_a_recipe_of_images_is_that_of_images(phalanx: Terminal) -> None:
    seen = Progress(step=3, total_steps=9, loss=2.0, tokens_per_s=900.0, mfu=0.0, eta_ms=None, images_per_s=36.0)
    view = job_view(progress=seen)
    phalanx.server.view(f"/jobs/{JOB}", JobView, view)
    assert re.search(r"Images/s +36\n", phalanx("describe", JOB).out)
    assert progress_numbers(view)[1] == "36 images/s"


def test_why_shows_the_place_in_the_line(phalanx: Terminal) -> None:
    phalanx.server.view(f"/jobs/{JOB}/why", WhyView, why_view(state="pending", sentence="waits for devices", position=3))
    assert phalanx("why", JOB).out == f"{JOB} is pending: waits for devices\n"


def test_the_ledger_is_bars_that_sum_to_capacity(phalanx: Terminal) -> None:
    lines = phalanx("ledger").out.splitlines()
    assert lines[1].split()[0] == "productive"
    assert lines[1].split()[-2:] == ["15.000", "75.00%"]
    assert lines[1].count("█") == 22
    text = "\n".join(lines)
    for part in ("Sums to capacity", "yes", "20.000 device-seconds", "0.0123 USD", "CPU slots", "prices of CPU slots are a guess"):
        assert part in text, part


def test_a_ledger_that_does_not_add_up_says_so_whatever_the_server_claims(phalanx: Terminal) -> None:
    phalanx.server.view("/ledger", LedgerView, ledger_view(capacity=20_000_001))
    assert "NO: off by -1" in phalanx("ledger").out


def test_model_show_is_a_tree(phalanx: Terminal) -> None:
    lines = phalanx("model", "show", "tiny-lm:1").out.splitlines()
    assert lines[0] == "tiny-lm:1"
    above = lines.index("    └── environment")
    assert lines[above + 1 : above + 3] == ["        ├── torch: 2.13.0", "        └── python: 3.11"]
    assert any("val_loss: 5.5" in one for one in lines)


def test_model_sample_shows_the_text_only(phalanx: Terminal) -> None:
    shown = phalanx("model", "sample", "tiny-lm:1", "--prompt", "def ", "--tokens", "5", "--seed", "3", "--temperature", "0")
    assert (shown.code, shown.out) == (0, "def /jobs/model 3e16 5 3 0.0\x1b[2J\n")
    as_json = json.loads(phalanx("model", "sample", "tiny-lm:1", "-o", "json").out)
    assert as_json["model"] == "tiny-lm:1"
    assert as_json["text"].startswith("def /jobs/model 3e16 100 0")


def test_model_export_says_where_it_is(phalanx: Terminal, tmp_path: Path) -> None:
    asked = ("model", "export", "tiny-lm:1", "--dtype", "bfloat16", "--to")
    shown = phalanx(*asked, str(tmp_path / "new"))
    assert (shown.code, shown.out) == (0, f"tiny-lm:1 is in {tmp_path}/new (hf, bfloat16)\n")
    as_json = json.loads(phalanx(*asked, "out", "-o", "json").out)
    assert as_json == {"model": "tiny-lm:1", "to": "out", "format": "hf", "dtype": "bfloat16"}
    failed = phalanx(*asked, str(tmp_path))
    assert (failed.code, failed.out) == (2, "")


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_a_failed_model_sample_says_nothing_on_standard_output(phalanx: Terminal, output: str) -> None:
    failing = dataclasses.replace(TOOLS, sample_model=lambda *_: 2)
    assert run(failing, ["model", "sample", "tiny-lm:1", "-o", output]) == 2
    assert phalanx.capture.readouterr().out == ""


def test_a_late_job_is_called_so_and_one_that_finished_was_late(phalanx: Terminal) -> None:
    late = job_view(state="pending", why="waits", attempts=(), deadline_ms=DAY, late="its deadline passed 3m 00s ago")
    phalanx.server.view(f"/jobs/{JOB}", JobView, late)
    assert "Deadline   2026-11-28 00:00:00 UTC; its deadline passed 3m 00s ago\n" in phalanx("describe", JOB).out
    phalanx.server.view("/jobs", tuple[JobView, ...], (late,))
    assert "waits; its deadline passed 3m 00s ago" in phalanx("ls").out
    assert str(next(iter(submitted_page(late, follow=False)))) == f"Submitted {JOB}: waits; its deadline passed 3m 00s ago."
    for after_ms, after in ((60_000, "; it finished 1m 00s after it"), (-1, "")):
        done = job_view(state="finished", outcome="succeeded", finished_ms=DAY + after_ms, deadline_ms=DAY)
        phalanx.server.view(f"/jobs/{JOB}", JobView, done)
        assert f"Deadline   2026-11-28 00:00:00 UTC{after}\n" in phalanx("describe", JOB).out


def test_describe_counts_the_nodes_that_an_elastic_gang_holds(phalanx: Terminal) -> None:
    ranks = tuple(RankView(rank=rank, node=NodeId(f"r{rank + 2}"), device=0, pid=None) for rank in range(2))
    two = dataclasses.replace(killed_attempt(), ended_ms=None, ranks=ranks)
    elastic = {"num_nodes": 3, "devices": "1", "spec": {"num_nodes": 3, "min_nodes": 1}}
    for view, said_ in (
        (job_view(**elastic, attempts=(two,)), "1 on each of 2 nodes (asks for 3, at least 1)"),
        (job_view(**elastic, attempts=(dataclasses.replace(two, ranks=ranks[:1]),)), "1 on 1 node (asks for 3, at least 1)"),
        (job_view(**elastic, attempts=(two,), state="pending"), "1 on each of 3 nodes (at least 1)"),
        (job_view(num_nodes=3, devices="2", spec={}, attempts=(), state="pending"), "2 on each of 3 nodes"),
        (job_view(num_nodes=1, devices="2", spec={}, attempts=(), state="pending"), "2 on 1 node"),
    ):
        phalanx.server.view(f"/jobs/{JOB}", JobView, view)
        assert f"Devices    {said_} (devices here: " in phalanx("describe", JOB).out


def test_describe_hides_values_whose_names_sound_secret_from_the_screen(phalanx: Terminal) -> None:
    env = {"LEVEL": "1", "HF_TOKEN": "t0p", "aws_secret_id": "t0p", "DB_PASSWORD": "t0p", "API_KEY": "t0p"}
    view = job_view()
    view = dataclasses.replace(view, spec={**view.spec, "env": env})
    phalanx.server.view(f"/jobs/{JOB}", JobView, view)
    shown = phalanx("describe", JOB).out
    assert "t0p" not in shown and shown.count("(hidden)") == 4
    assert "LEVEL" in shown
    assert json.loads(phalanx("describe", JOB, "-o", "json").out)["spec"]["env"] == env


def test_checkpoint_ls_shows_what_is_whole_and_what_was_never_committed(phalanx: Terminal, tmp_path: Path) -> None:
    shown = phalanx("checkpoint", "ls", str(tmp_path))
    assert [row.split()[0] for row in shown.out.splitlines()] == [
        "CHECKPOINT", "step-00000006", "step-00000004", "step-00000006/manifest.json:"
    ]  # fmt: skip
    assert shown.out.splitlines()[2].split() == ["step-00000004", "lm-1.1", "2", "9", "3.0", "MiB", "val_loss", "2.5", "whole"]
    as_json = json.loads(phalanx("checkpoint", "ls", str(tmp_path), "-o", "json").out)
    assert [(one["step"], one["committed"], one["verified"]) for one in as_json] == [(6, False, False), (4, True, False)]


def test_checkpoint_verify_names_the_damage_and_ends_with_1(phalanx: Terminal, tmp_path: Path) -> None:
    place = tmp_path / "damaged"
    shown = phalanx("checkpoint", "verify", str(place))
    assert shown.code == 1 and shown.err == "step-00000008\n"
    assert "step-00000008/shard-00001-ab.safetensors: w@0,0 does not match its checksum\\x1b[31m" in shown.out
    assert [row.split()[-1] for row in shown.out.splitlines()[1:4]] == ["damaged", "committed", "verified"]
    as_yaml = phalanx("checkpoint", "verify", str(place), "-o", "yaml")
    assert as_yaml.code == 1 and "w@0,0 does not match" in as_yaml.out
    assert phalanx("checkpoint", "verify", str(tmp_path)).code == 0  # what was never committed is no damage


def test_the_checkpoints_of_a_job_are_looked_for_where_it_saved_them(phalanx: Terminal, tmp_path: Path) -> None:
    def saved(folder: Path) -> CheckpointView:
        path = str(folder / "step-00000004")
        return CheckpointView(attempt=AttemptId(f"{JOB}.1"), step=4, path=path, digest="d", size_bytes=1, at_ms=1)

    phalanx.server.view(f"/jobs/{JOB}", JobView, finished_view(checkpoints=(saved(tmp_path),)))
    assert f'"path": "{tmp_path}/step-00000004"' in phalanx("checkpoint", "ls", JOB, "-o", "json").out
    phalanx.server.view(f"/jobs/{JOB}", JobView, finished_view(checkpoints=(saved(tmp_path / "elsewhere"),)))
    away = phalanx("checkpoint", "ls", JOB)
    assert away.code == 4 and "is not on this machine" in away.err
    phalanx.server.view(f"/jobs/{JOB}", JobView, finished_view(checkpoints=()))
    assert "has committed no checkpoint" in phalanx("checkpoint", "verify", JOB).err


@pytest.mark.parametrize("place", ["s3://bkt/runs/tiny-lm-1-7", "{folder}"])
def test_checkpoints_that_nobody_heard_of_are_found_where_the_server_says(phalanx: Terminal, tmp_path: Path, place: str) -> None:
    where = place.format(folder=tmp_path)
    phalanx.server.view(f"/jobs/{JOB}", JobView, dataclasses.replace(finished_view(checkpoints=()), checkpoints_at=where))
    assert f'"path": "{where}/step-00000004"' in phalanx("checkpoint", "ls", JOB, "-o", "json").out
    assert '"path": "gs://bkt/x/step-00000004"' in phalanx("checkpoint", "ls", "gs://bkt/x", "-o", "json").out


@pytest.mark.parametrize(("outcome", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_wait_ends_with_the_outcome(phalanx: Terminal, outcome: str, code: int) -> None:
    phalanx.server.view(f"/jobs/{JOB}", JobView, finished_view(outcome))
    shown = phalanx("wait", JOB)
    assert shown.code == code
    assert f"{JOB} {outcome}: all ranks exited 0 (restarts 1; model tiny-lm:1)" in shown.out


def test_wait_gives_up_with_its_own_exit_code(phalanx: Terminal) -> None:
    shown = phalanx("wait", JOB, "--timeout", "10ms")
    assert (shown.code, shown.out) == (5, "")
    assert "still running" in shown.err


def test_cancel_shows_the_state_and_a_finished_job_is_a_conflict(phalanx: Terminal) -> None:
    phalanx.server.on(
        "POST", f"/jobs/{JOB}/cancel", said(JobView, job_view(state="stopping")), refusal(409, "job", JOB, "has finished")
    )
    assert "is stopping" in phalanx("cancel", JOB).out
    again = phalanx("cancel", JOB)
    assert (again.code, again.err) == (2, f"Error: job is '{JOB}': has finished\n")


def test_several_jobs_are_cancelled_and_each_has_its_answer(phalanx: Terminal) -> None:
    phalanx.server.on("POST", "/jobs/tiny-lm-8/cancel", refusal(409, "job", "tiny-lm-8", "has finished"))
    phalanx.server.on("POST", f"/jobs/{JOB}/cancel", said(JobView, job_view(state="stopping")))
    shown = phalanx("cancel", "tiny-lm-8", JOB, JOB)
    assert (shown.code, shown.err) == (2, "Error: job is 'tiny-lm-8': has finished\n")
    assert shown.out.startswith(f"{JOB} is stopping")
    assert phalanx.server.paths("POST") == ["/jobs/tiny-lm-8/cancel", f"/jobs/{JOB}/cancel"]
    assert [view["id"] for view in json.loads(phalanx("cancel", JOB, "-o", "json").out)] == [JOB]


def test_submit_of_an_array_names_its_first_and_last_job(phalanx: Terminal, tmp_path: Path) -> None:
    array = job_view(state="pending", why="waits for nodes", id="arr-9", array="arr-9", spec={"array": {"count": 3, "parallel": 0}})
    phalanx.server.on("POST", "/jobs", said(JobView, array))
    first, second = phalanx("submit", job_file(tmp_path / "code")).out.splitlines()
    assert first == "Submitted arr-9 to arr-11 (array of 3): waits for nodes."
    assert "`phalanx cancel --array arr-9`" in second


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"devices": "H100|A100-80:8", "num_nodes": 4, "state": "pending"}, "H100|A100-80:32"),
        ({"devices": "2", "num_nodes": 3, "state": "finished"}, "6"),
        ({"devices": "L4:0.25", "num_nodes": 2, "state": "paused"}, "L4:0.5"),
        ({"devices": "0.25", "state": "pending"}, "0.25"),
        ({"devices": "2", "num_nodes": 4, "state": "running", "attempts": (killed_attempt(),)}, "2"),
        ({"devices": "some of a newer kind", "num_nodes": 2}, "some of a newer kind"),
    ],
)
def test_ls_counts_the_devices_of_the_whole_gang(fields: dict[str, Any], shown: str) -> None:
    """Those that it holds, which of an elastic one may be fewer, else those that it asks for."""
    assert gang_devices(job_view(**fields)) == shown


def test_an_array_is_cancelled_by_any_of_its_jobs_and_describe_names_it(phalanx: Terminal) -> None:
    view = job_view(state="stopping", array="tiny-lm-5", array_index=2)
    phalanx.server.on("POST", f"/jobs/{JOB}/cancel", said(JobView, view))
    shown = phalanx("cancel", "--array", JOB)
    assert shown.out == "Every job of the array tiny-lm-5 that had not finished was asked to end.\n"
    assert phalanx.server.asked[-1].query == {"array": "true"}
    phalanx.server.view(f"/jobs/{JOB}", JobView, view)
    phalanx.server.view(f"/jobs/{JOB}/why", WhyView, why_view())
    assert "number 2 of tiny-lm-5" in phalanx("describe", JOB).out


def test_logs_are_raw_in_a_pipe(phalanx: Terminal) -> None:
    phalanx.server.view(f"/jobs/{JOB}/logs", LogPage, log_page("a\x1b[31m\r\n"), log_page("b\n", 8), log_page("", 10))
    assert phalanx("logs", JOB, "--rank", "1", "--attempt", "2").out == "a\x1b[31m\r\nb\n"
    assert phalanx.server.asked[0].query == {"rank": "1", "attempt": f"{JOB}.2", "offset": "0", "limit": "65536"}


def test_logs_as_json_are_one_page(phalanx: Terminal) -> None:
    phalanx.server.view(f"/jobs/{JOB}/logs", LogPage, log_page("a\n"), log_page("b\n", 2), log_page("", 4, ended=True))
    page = json.loads(phalanx("logs", JOB, "-o", "json").out)
    assert (page["text"], page["offset"], page["next_offset"], page["ended"]) == ("a\nb\n", 0, 4, True)


def test_followed_logs_as_json_are_a_line_a_page(phalanx: Terminal) -> None:
    phalanx.server.view(f"/jobs/{JOB}", JobView, job_view(), finished_view())
    phalanx.server.view(f"/jobs/{JOB}/logs", LogPage, log_page("a\n"), log_page("b\n", 2), log_page("", 4, ended=True))
    lines = phalanx("logs", "-f", JOB, "-o", "json").out.splitlines()
    assert [json.loads(one)["text"] for one in lines] == ["a\n", "b\n"]


def job_file(folder: Path, **fields: Any) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"name": "tiny-lm", "entrypoint": "python train.py", **fields}))
    return str(path)


def submitted(server: RecordedServer) -> SubmitRequest:
    request: SubmitRequest = wire.loads(SubmitRequest, next(one.body for one in server.asked if one.method == "POST"))
    return request


def test_submit_sends_the_spec_with_its_workdir_once(phalanx: Terminal, tmp_path: Path) -> None:
    phalanx.server.on("POST", "/jobs", said(JobView, job_view(state="pending", why="waits for nodes"), 201))
    phalanx.server.on("PUT", f"/blobs/{PACK_SHA}", said(dict, {}))
    shown = phalanx("submit", job_file(tmp_path / "code", workdir="."))
    assert (shown.code, shown.out.splitlines()[0]) == (0, f"Submitted {JOB}: waits for nodes.")
    sent = submitted(phalanx.server)
    assert sent.code == PACK_SHA
    assert len(sent.key) == 32
    assert sent.spec["workdir"] == str(tmp_path / "code")
    assert phalanx.server.paths("PUT") == [f"/blobs/{PACK_SHA}"]


def test_set_changes_dotted_fields_as_yaml(phalanx: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    phalanx.server.on("POST", "/jobs", said(JobView, job_view(), 201))
    file = job_file(tmp_path / "code", hyperparameters={"lr": 0.1})
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "manifest.json").write_text("{}")
    changes = (
        "hyperparameters.steps=50", "hyperparameters.note=a=b", "checkpoint.every=5", "env.LEVEL=3", "data.path=shards",
        "entrypoint=[python, other.py]", "resources.gpus=2",
    )  # fmt: skip
    shown = phalanx("submit", file, *(word for change in changes for word in ("--set", change)), "--name", "other", "-o", "json")
    assert shown.code == 0, shown.err
    spec = submitted(phalanx.server).spec
    assert spec["name"] == "other"
    assert spec["hyperparameters"] == {"lr": 0.1, "steps": 50, "note": "a=b"}
    assert (spec["checkpoint"]["every"], spec["env"], spec["resources"]["gpus"]) == (5, {"LEVEL": "3"}, "2")
    assert spec["entrypoint"] == ["python", "other.py"]
    assert spec["data"]["path"] == str(tmp_path / "shards")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("submit", "/nonexistent.yaml"), "Error: job file is '/nonexistent.yaml': cannot be read"),
        (("submit", "FILE", "--set", "steps"), "Error: --set is 'steps': write KEY=VALUE"),
        (("submit", "FILE", "--set", ".=1"), "Error: --set is '.=1': write KEY=VALUE"),
        (("submit", "FILE", "--set", "env.A=[1"), "Error: --set env.A is '[1': is not a YAML value"),
        (("submit", "FILE", "--set", "name.x=1"), "Error: --set name.x is 'tiny-lm': name is not a mapping"),
        (("submit", "FILE", "--set", "resources.gpu=2"), "did you mean 'gpus'?"),
        (("submit", "FILE", "--name", "Bad\x1b[2J"), "Error: name is 'Bad\\x1b[2J': use lower-case letters"),
        (("wait", JOB, "--timeout", "soon"), "Error: --timeout is 'soon': write a duration such as '90s'"),
        (("ledger", "--since", "5"), "Error: --since is '5': write a duration"),
        (("ls", "-o", "xml"), "'xml' is not one of"),
        (("ls", "--state", "foo"), "Error: --state is 'foo': write one of pending, starting, running, stopping, paused, finished"),
        (("logs", JOB, "--rank", "-1"), "--rank"),
    ],
)
def test_bad_input_is_one_clear_message(phalanx: Terminal, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    file = job_file(tmp_path / "code")
    shown = phalanx(*(file if one == "FILE" else one for one in arguments))
    assert (shown.code, shown.out) == (2, "")
    assert message in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    "arguments", [("describe", "../etc"), ("describe", "nope-1"), ("model", "show", "tiny-lm:x"), ("why", "A B")]
)
def test_what_does_not_exist_has_its_own_exit_code(phalanx: Terminal, arguments: tuple[str, ...]) -> None:
    assert phalanx(*arguments).code == 4


def test_a_server_that_is_away_has_its_own_exit_code(phalanx: Terminal) -> None:
    shown = phalanx("status", "--home", str(phalanx.home / "other"))
    assert (shown.code, shown.out) == (3, "")
    assert "start one with `phalanx up`" in shown.err


def test_a_bug_shows_its_traceback(phalanx: Terminal) -> None:
    phalanx.server.on("GET", "/status", refusal(500, detail="KeyError"))
    shown = phalanx("status")
    assert shown.code == 70
    assert "Traceback" in shown.err
    assert "the server failed (500: KeyError)" in shown.err


def test_hostile_names_reach_no_terminal(phalanx: Terminal) -> None:
    evil = "x\x1b]0;owned\x07[bold red]\n\u202eabc\u2028"
    job = job_view(
        name=evil,
        detail=evil,
        why=evil,
        queue=evil,
        state="pending",
        submitted_by=evil,
        model=evil,
        spec={"name": evil, evil: [evil]},
    )
    phalanx.server.view(f"/jobs/{JOB}", JobView, job)
    phalanx.server.view("/jobs", tuple[JobView, ...], (job,))
    for arguments in (("describe", JOB), ("ls",), ("describe", JOB, "-o", "json"), ("describe", JOB, "-o", "yaml")):
        shown = phalanx(*arguments)
        assert shown.code == 0
        assert not set("\x1b\x07\u202e\u2028") & set(shown.out), arguments
    table = phalanx("ls").out
    assert "[bold red]" in table
    assert len(table.splitlines()) == 3
