"""The SDK in real processes: records land whole, rings are best effort, nothing ever blocks or breaks a step."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core import wire
from phalanx.core.errors import StoreUnavailable, UserError
from phalanx.core.records import RankRecord, Ring, StepRecord
from phalanx.core.spec import CheckpointPolicy
from phalanx.job.sdk import Session, attach
from phalanx.job.sdk.fault import Fault, parse_fault
from phalanx.job.sdk.journal import REDIAL_S, Bell
from phalanx.job.sdk.session import MODEL_PAUSE_S, MODEL_TRIES


def record(step: int, rank: int = 0) -> StepRecord:
    return StepRecord(
        rank=rank, step=step, total_steps=400, loss=2.5, loss_hex=(2.5).hex(), grad_norm=1.0, lr=1e-3, tokens=1024,
        tokens_per_s=5000.0, mfu=0.0, started_ms=1, ended_ms=2,
    )  # fmt: skip


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "PHALANX_RECORDS": str(tmp_path / "rank-0.records"), "PHALANX_SOCKET": str(tmp_path / "s"), "PHALANX_JOB": "demo-1",
        "PHALANX_ATTEMPT": "demo-1.2", "PHALANX_JOB_DIR": "/jobs/demo-1", "PHALANX_HYPERPARAMETERS": '{"lr": 0.5}',
        "PHALANX_CHECKPOINT_EVERY": "7", "PHALANX_CHECKPOINT_KEEP_LAST": "3", "PHALANX_DATA": "/data", "PHALANX_CODE": "ab",
        "PHALANX_CHECKPOINT_KEEP_BEST": "1", "PHALANX_CHECKPOINT_BEST_METRIC": "bleu", "PHALANX_CHECKPOINT_BEST_MODE": "max",
        "PHALANX_CHECKPOINT_KEEP_EVERY": "70", "PHALANX_ARTIFACTS": "/kept", "RANK": "0", "WORLD_SIZE": "2", **more,
    }  # fmt: skip


def said(tmp_path: Path) -> list[object]:
    return [wire.loads(RankRecord, line) for line in (tmp_path / "rank-0.records").read_bytes().splitlines()]


def listen(tmp_path: Path) -> socket.socket:
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    agent.bind(str(tmp_path / "s"))
    agent.listen(4)
    agent.settimeout(60)
    return agent


def close(session: Session) -> None:
    assert session.journal is not None
    session.journal.close()


def test_outside_phalanx_nothing_is_said_and_defaults_hold() -> None:
    session = attach({})
    session.step(record(1))
    session.metric(name="loss", value=1.0, step=1)
    assert (session.job, session.rank, session.world_size, session.job_dir) == ("", 0, 1, ".")
    assert session.checkpoint_every == CheckpointPolicy().every


def test_the_environment_becomes_properties(tmp_path: Path) -> None:
    session = attach(environ(tmp_path, RANK="1"))
    assert (session.job, session.attempt, session.rank, session.world_size) == ("demo-1", "demo-1.2", 1, 2)
    assert (session.job_dir, session.data, session.code) == ("/jobs/demo-1", "/data", "ab")
    assert (session.artifacts_dir, attach({}).artifacts_dir) == ("/kept", ".")
    ours, torchs = {"PHALANX_NODE": "a"}, {"GROUP_RANK": "1"}
    assert [attach(env).node for env in ({**ours, **torchs}, torchs, {})] == ["a", "1", ""]
    assert (session.hyperparameters, session.checkpoint_every, session.checkpoint_keep_last) == ({"lr": 0.5}, 7, 3)
    assert (session.checkpoint_keep_best, session.checkpoint_best_metric) == (1, "bleu")
    assert (session.checkpoint_best_mode, session.checkpoint_keep_every) == ("max", 70)
    close(session)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "x"),
        ("PHALANX_CHECKPOINT_EVERY", "-1"),
        ("PHALANX_CHECKPOINT_BEST_MODE", "least"),
        ("PHALANX_HYPERPARAMETERS", "[1]"),
    ],
)
def test_a_senseless_variable_is_named(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(UserError, match=name):
        attach(environ(tmp_path, **{name: value}))


def test_every_kind_of_record_is_a_line_and_the_agent_is_rung_after_the_write(tmp_path: Path) -> None:
    agent = listen(tmp_path)
    session = attach(environ(tmp_path))
    session.step(record(1))
    session.metric(name="val_loss", value=3.5, step=1)
    session.resumed(step=4, checkpoint="step-4", skipped=("step-5",))
    session.checkpoint(step=5, path="/c/5", digest="d", size_bytes=9)
    session.model(step=5, path="/m", weights_digest="w", metrics={"val": 1.0}, lineage={"recipe": "llama"})
    assert [getattr(fact, "kind", "") for fact in said(tmp_path)] == ["step", "metric", "resumed", "checkpoint", "model"]
    caller = agent.accept()[0]
    caller.settimeout(60)
    with caller.makefile("rb") as lines:
        rings = [wire.loads(Ring, next(lines)) for _ in range(5)]
    assert rings[-1].offset == (tmp_path / "rank-0.records").stat().st_size
    assert {(ring.rank, ring.pid) for ring in rings} == {(0, os.getpid())}
    close(session)
    caller.close()
    agent.close()


def test_the_bell_is_dialled_again_but_not_too_often(tmp_path: Path) -> None:
    now_s = [100.0]
    bell = Bell(str(tmp_path / "s"), 0, lambda: now_s[0])
    assert not bell.ring(1)
    agent = listen(tmp_path)
    assert not bell.ring(2)
    now_s[0] += REDIAL_S
    assert bell.ring(3)
    agent.accept()[0].close()
    agent.close()
    (tmp_path / "s").unlink()
    assert not any(bell.ring(number) for number in range(4, 6))
    agent = listen(tmp_path)
    now_s[0] += REDIAL_S
    assert bell.ring(7)
    bell.close()
    agent.close()


def test_an_agent_that_does_not_listen_never_holds_a_step(tmp_path: Path) -> None:
    agent = listen(tmp_path)
    session = attach(environ(tmp_path))
    for step in range(1, 5001):  # far more than the socket's buffer holds
        session.step(record(step))
    assert len(said(tmp_path)) == 5000
    close(session)
    agent.close()


def test_a_step_record_costs_far_less_than_a_millisecond(tmp_path: Path) -> None:
    agent = listen(tmp_path)
    session = attach(environ(tmp_path))
    costs = []
    for step in range(1, 501):
        before = time.perf_counter()
        session.step(record(step))
        costs.append(time.perf_counter() - before)
    assert sorted(costs)[250] < 0.0005
    close(session)
    agent.close()


def test_a_full_disk_costs_records_and_not_the_run(tmp_path: Path) -> None:
    """A file size limit plays the full disk: the kernel cuts the write short, then refuses."""
    program = (
        "import resource, signal\n"
        "from phalanx.job.sdk import attach\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "session = attach()\n"
        "session.metric(name='first', value=1.0, step=1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (120, resource.RLIM_INFINITY))\n"
        "session.metric(name='torn', value=2.0, step=2)\n"
        "session.metric(name='refused', value=3.0, step=3)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "session.metric(name='last', value=4.0, step=4)\n"
        "print(session.lost_records)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environ(tmp_path)}, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("2\n", "")
    lines = (tmp_path / "rank-0.records").read_text().splitlines()
    assert [json.loads(lines[index])["name"] for index in (0, -1)] == ["first", "last"]
    assert len(lines) == 3


def limited_to(size: int) -> None:
    """Later writes past `size` bytes fail as on a full disk; python ignores the signal that goes with it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def say_model(session: Session) -> None:
    session.model(step=5, path="/m", weights_digest="w", metrics={}, lineage={})


def kinds(tmp_path: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in (tmp_path / "rank-0.records").read_text().splitlines() if line.endswith("}")]


def test_a_record_file_that_cannot_be_opened_costs_records_and_is_tried_again(tmp_path: Path) -> None:
    place = tmp_path / "not" / "yet"
    session = attach(environ(tmp_path, PHALANX_RECORDS=str(place / "rank-0.records")))
    session.checkpoint(step=1, path="/c/1", digest="d", size_bytes=9)
    session.step(record(1))
    assert session.lost_records == 2
    place.mkdir(parents=True)
    session.step(record(2))
    assert session.lost_records == 1
    assert kinds(place) == ["checkpoint", "step"]
    close(session)


def with_full_disk(act: Callable[[], None]) -> None:
    limited_to(1)
    try:
        act()
    finally:
        limited_to(resource.RLIM_INFINITY)


def test_a_checkpoint_that_a_full_disk_hid_is_said_with_the_next_record(tmp_path: Path) -> None:
    session = attach(environ(tmp_path))
    session.metric(name="first", value=1.0, step=1)
    with_full_disk(lambda: session.checkpoint(step=1, path="/c/1", digest="d", size_bytes=9))
    assert session.lost_records == 1
    session.step(record(2))
    assert (session.lost_records, kinds(tmp_path)) == (0, ["metric", "checkpoint", "step"])
    close(session)


def test_a_finished_model_is_said_again_until_the_disk_takes_it(tmp_path: Path) -> None:
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            limited_to(resource.RLIM_INFINITY)

    session = replace(attach(environ(tmp_path)), pause=pause)
    session.metric(name="first", value=1.0, step=1)
    with_full_disk(lambda: say_model(session))
    assert waits == [MODEL_PAUSE_S] * 3
    assert (session.lost_records, kinds(tmp_path)) == (0, ["metric", "model"])
    close(session)


def test_a_finished_model_that_nobody_would_hear_of_is_an_error(tmp_path: Path) -> None:
    waits: list[float] = []
    session = replace(attach(environ(tmp_path)), pause=waits.append)
    session.metric(name="first", value=1.0, step=1)
    with pytest.raises(StoreUnavailable, match="/m: the model is saved, but its record"):
        with_full_disk(lambda: say_model(session))
    assert len(waits) == MODEL_TRIES - 1 and session.lost_records == 1
    close(session)


def test_a_fault_kills_its_rank_right_after_that_steps_record(tmp_path: Path) -> None:
    program = (
        "from phalanx.job.sdk import attach\n"
        "from phalanx.core.records import StepRecord\n"
        "session = attach()\n"
        "rest = dict(total_steps=5, loss=1., loss_hex='', grad_norm=1., lr=1., tokens=1, tokens_per_s=1., mfu=0.)\n"
        "for step in range(1, 6): session.step(StepRecord(rank=0, step=step, started_ms=1, ended_ms=1, **rest))\n"
    )
    for attempt, code, steps in (("2", -signal.SIGKILL, 3), ("1", 0, 8)):
        env = {**os.environ, **environ(tmp_path, PHALANX_FAULT=f"sigkill rank=0 step=3 attempt={attempt}")}
        assert subprocess.run([sys.executable, "-c", program], env=env, timeout=60).returncode == code
        assert len(said(tmp_path)) == steps


def test_a_rank_that_takes_over_ends_the_line_in_which_its_forerunner_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.records"
    path.write_bytes(b'{"kind": "metric", "st')
    attach(environ(tmp_path)).metric(name="whole", value=1.0, step=1)
    torn, whole = path.read_bytes().splitlines()
    assert torn == b'{"kind": "metric", "st'
    assert json.loads(whole)["name"] == "whole"
    attach(environ(tmp_path)).metric(name="next", value=1.0, step=2)
    assert len(path.read_bytes().splitlines()) == 3, "nothing is put where the last line was whole"


@pytest.mark.parametrize(
    "text", ["sigkill", "sigterm rank=1 step=2 attempt=1", "sigkill rank=1 step=2", "sigkill rank=-1 step=2 attempt=1", " "]
)
def test_a_fault_that_is_not_exact_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="PHALANX_FAULT"):
        parse_fault(text)


def test_a_fault_is_parsed() -> None:
    assert parse_fault("sigkill rank=1 step=137 attempt=1") == Fault(1, 137, 1)
    assert parse_fault("hang rank=0 step=2 attempt=3") == Fault(0, 2, 3, "hang")
    assert parse_fault("slow rank=0 from=5 ms=30 attempt=2") == Fault(0, 5, 2, "slow", 30)
    assert parse_fault("") is None
