"""Entries in MLflow's own store: applied once however often they come, quietly, and put off while the store is away."""

import errno
import fcntl
import importlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from phalanx.core import wire
from phalanx.core.errors import StoreUnavailable
from phalanx.core.ids import AttemptId, JobId
from phalanx.record.tracking.entries import Entry, MetricPoint, MetricPoints, ModelVersion, RunFinished, RunStarted, RunWaits
from phalanx.record.tracking.mlflow_store import EntryRefused, MlflowStore, places, quiet, safe_key
from phalanx.record.tracking.tracking_process import TRIES_MAX, serve

JOB = JobId("tiny-lm-7")
ONE, TWO = AttemptId("tiny-lm-7.1"), AttemptId("tiny-lm-7.2")
STARTED = RunStarted(JOB, ONE, "demo", "tiny-lm", {"lr": "0.005", "odd@key": "1"}, {"phalanx.job": JOB, "phalanx.by": "me"}, 1_000)
POINTS = MetricPoints(JOB, tuple(MetricPoint("loss", number, 9.0 - number / 1_000, number) for number in range(1, 2_501)))
FINISHED = RunFinished(JOB, "FINISHED", (ONE, TWO), "all ranks exited 0", 9_000)
VERSION = ModelVersion("demo", 3, JOB, TWO, "/models/x y", "w" * 64, {"data_manifest": "m" * 64}, {"val_loss": 5.6}, 8_000)
ALL: list[Entry] = [STARTED, POINTS, VERSION, FINISHED]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for the module: a fresh database costs MLflow a second of migrations."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def store(home: Path, tmp_path_factory: pytest.TempPathFactory) -> MlflowStore:
    """Made in an empty working folder, which must stay so."""
    before = Path.cwd()
    folder = tmp_path_factory.mktemp("cwd")
    os.chdir(folder)
    try:
        made = MlflowStore(home, {})
        made.apply(STARTED)
    finally:
        os.chdir(before)
    assert list(folder.iterdir()) == []
    return made


def client(store: MlflowStore) -> Any:
    return store._client


def run_of(store: MlflowStore, job: JobId) -> Any:
    found = client(store).search_runs(
        [one.experiment_id for one in client(store).search_experiments()], f"tags.`phalanx.job` = '{job}'"
    )
    assert len(found) == 1
    return found[0]


def test_a_run_with_its_curves_its_state_and_its_model(store: MlflowStore, home: Path) -> None:
    for entry in ALL:
        store.apply(entry)
    run = run_of(store, JOB)
    experiment = client(store).get_experiment_by_name("demo")
    assert run.info.experiment_id == experiment.experiment_id
    assert experiment.artifact_location == (home.resolve() / "mlflow-artifacts" / "demo").as_uri()
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", 1_000, 9_000)
    assert run.data.params == {"lr": "0.005", "odd_key": "1"}
    assert run.data.metrics["loss"] == 6.5
    assert len(client(store).get_metric_history(run.info.run_id, "loss")) == 2_500
    (version,) = client(store).search_model_versions("name = 'demo'")
    assert (version.run_id, version.source) == (run.info.run_id, "file:///models/x%20y")
    assert version.tags["phalanx.version"] == "3"
    assert version.tags["lineage.data_manifest"] == "m" * 64


def test_applying_again_after_a_crash_makes_nothing_twice(store: MlflowStore, home: Path) -> None:
    for again in (store, MlflowStore(home, {})):
        for entry in [*ALL, *ALL]:
            again.apply(entry)
    run = run_of(store, JOB)
    assert len(client(store).get_metric_history(run.info.run_id, "loss")) == 2_500
    assert len(client(store).search_model_versions("name = 'demo'")) == 1
    assert run.info.status == "FINISHED"


def test_a_changed_parameter_belongs_to_its_attempt(store: MlflowStore) -> None:
    job = JobId("changed-8")
    store.apply(replace(STARTED, job=job, attempt=AttemptId("changed-8.1"), params={"lr": "0.1"}))
    for _ in range(2):
        store.apply(replace(STARTED, job=job, attempt=AttemptId("changed-8.2"), params={"lr": "0.2", "new": "x" * 7_000}))
    params = run_of(store, job).data.params
    assert params == {"lr": "0.1", "attempt-2/lr": "0.2", "new": "x" * 6_000}


def test_a_run_that_was_paused_or_over_goes_on(store: MlflowStore) -> None:
    """MLflow's word for a run that waits is SCHEDULED; a retried job's run was even over."""
    job = JobId("goes-on-11")
    started = replace(STARTED, job=job, attempt=AttemptId("goes-on-11.1"))
    again = replace(started, attempt=AttemptId("goes-on-11.2"))
    waits, failed = RunWaits(job, "paused", 2_000), RunFinished(job, "FAILED", (), "rank 0 exited with code 1", 3_000)
    said: list[tuple[Entry, str, str]] = [
        (started, "RUNNING", ""),
        (waits, "SCHEDULED", "paused"),
        (again, "RUNNING", ""),
        (failed, "FAILED", "rank 0 exited with code 1"),
        (RunWaits(job, "waits to be tried again", 4_000), "SCHEDULED", "waits to be tried again"),
        (again, "RUNNING", ""),
        (replace(failed, status="FINISHED", detail="well", at_ms=9_000), "FINISHED", "well"),
    ]
    for entry, status, detail in said:
        for _ in range(2):
            store.apply(entry)
            run = run_of(store, job)
            assert (run.info.status, run.data.tags.get("phalanx.detail", "")) == (status, detail)
    assert run.info.end_time == 9_000


def test_another_home_on_the_same_server_keeps_its_own_runs(store: MlflowStore, home: Path, tmp_path: Path) -> None:
    job = JobId("shared-9")
    entry = replace(STARTED, job=job, attempt=AttemptId("shared-9.1"))
    store.apply(entry)
    other = MlflowStore(tmp_path, {"MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"})
    other.apply(entry)
    other.apply(entry)
    experiments = [one.experiment_id for one in client(store).search_experiments()]
    assert len(client(store).search_runs(experiments, f"tags.`phalanx.job` = '{job}'")) == 2


def test_a_diverged_run_and_odd_names_are_taken(store: MlflowStore) -> None:
    job = JobId("odd-10")
    store.apply(replace(STARTED, job=job, attempt=AttemptId("odd-10.1")))
    names = ["../../etc", "/abs", ".", "a//b", "emoji 🙂", "x" * 400, "ok/name"]
    points = [
        MetricPoint(name, 1, value, 5)
        for name, value in zip(names, [float("nan"), float("inf"), 1.0, 2.0, 3.0, 4.0, 5.0], strict=True)
    ]
    store.apply(MetricPoints(job, tuple(points)))
    assert set(run_of(store, job).data.metrics) == {safe_key(name) for name in names}


def test_what_the_tracker_can_never_take_is_said_so(store: MlflowStore) -> None:
    with pytest.raises(EntryRefused, match="gone"):
        store.apply(replace(FINISHED, job=JobId("never-ran-99")))
    with pytest.raises(EntryRefused):
        store.apply(replace(FINISHED, job=JobId("it's-1")))
    with pytest.raises(EntryRefused):
        store.apply(replace(VERSION, name="a/b"))


def test_a_relative_path_is_refused_and_holds_up_nothing(store: MlflowStore) -> None:
    entries: list[Entry] = [replace(VERSION, path="model"), FINISHED]
    lines = [json.dumps({"seq": seq, "entry": wire.plain(Entry, entry)}) for seq, entry in enumerate(entries)]
    refused, done = serve(lines, lambda: store.apply)
    assert (refused["done"], done) == (0, {"done": 1})
    assert "absolute" in refused["refused"]


def test_what_fails_while_the_tracker_is_there_is_tried_a_few_times_only(
    store: MlflowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a surprise")

    monkeypatch.setattr(store._client, "set_terminated", broken)
    line = json.dumps({"seq": 7, "entry": wire.plain(Entry, FINISHED)})
    answers = list(serve([line] * TRIES_MAX, lambda: store.apply))
    assert [answer.get("retry") for answer in answers] == [7] * (TRIES_MAX - 1) + [None]
    assert (answers[-1]["done"], "surprise" in answers[-1]["refused"]) == (7, True)


def mlflow_error(code: str) -> Exception:
    made: Exception = importlib.import_module("mlflow.exceptions").MlflowException(
        "no", importlib.import_module("mlflow.protos.databricks_pb2").ErrorCode.Value(code)
    )
    return made


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ConnectionRefusedError("away"),
        requests.exceptions.ReadTimeout("slow"),
        sqlite3.OperationalError("database is locked"),
        TimeoutError("slow"),
        "TEMPORARILY_UNAVAILABLE",
        "PERMISSION_DENIED",
        RuntimeError("API request to endpoint failed with error code 503 != 200"),
    ],
)
def test_a_tracker_that_is_away_is_waited_for(store: MlflowStore, monkeypatch: pytest.MonkeyPatch, error: Exception | str) -> None:
    raised = mlflow_error(error) if isinstance(error, str) else error

    def away(*_: object, **__: object) -> None:
        raise RuntimeError("wrapped") from raised

    monkeypatch.setattr(store._client, "set_terminated", away)
    line = json.dumps({"seq": 7, "entry": wire.plain(Entry, FINISHED)})
    answers = list(serve([line] * (TRIES_MAX + 2), lambda: store.apply))
    assert [answer.get("retry") for answer in answers] == [7] * (TRIES_MAX + 2)


def test_a_project_deleted_by_a_user_comes_back(store: MlflowStore) -> None:
    job = JobId("back-11")
    gone = client(store).create_experiment("gone")
    client(store).delete_experiment(gone)
    store.apply(replace(STARTED, job=job, attempt=AttemptId("back-11.1"), project="gone"))
    assert run_of(store, job).info.experiment_id == gone


def test_a_locked_store_puts_off_and_then_takes_it(store: MlflowStore, home: Path) -> None:
    job = JobId("locked-12")
    entry = replace(STARTED, job=job, attempt=AttemptId("locked-12.1"))
    lock = sqlite3.connect(home / "mlflow.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    try:
        lines = [json.dumps({"seq": 4, "entry": wire.plain(Entry, entry)})]
        (answer,) = serve(lines, lambda: store.apply)
        assert answer["retry"] == 4
        assert "StoreUnavailable" in answer["error"]
    finally:
        lock.rollback()
        lock.close()
    assert list(serve(lines, lambda: store.apply)) == [{"done": 4}]
    assert run_of(store, job).data.params["lr"] == "0.005"


@pytest.mark.usefixtures("store")
def test_a_store_that_cannot_be_opened_is_opened_later(tmp_path: Path, home: Path) -> None:
    blocked = tmp_path / "home"
    blocked.mkdir()
    (blocked / "mlflow.db").mkdir()  # root could write anywhere, so a mode would stop nobody
    with pytest.raises(StoreUnavailable):
        MlflowStore(blocked, {})
    opened: list[Path] = []

    def open_store() -> Any:
        opened.append(blocked)
        return MlflowStore(blocked, {}).apply

    line = json.dumps({"seq": 1, "entry": wire.plain(Entry, STARTED)})

    def lines() -> Any:
        yield line
        (blocked / "mlflow.db").rmdir()
        shutil.copy(home / "mlflow.db", blocked / "mlflow.db")  # a fresh one would cost seconds of migrations
        yield line
        yield line

    answers = list(serve(lines(), open_store))
    assert [set(answer) for answer in answers] == [{"retry", "error"}, {"done"}, {"done"}]
    assert len(opened) == 2


@pytest.mark.usefixtures("store")
def test_a_database_whose_maker_was_killed_is_made_anew(tmp_path: Path) -> None:
    """In the midst of MLflow's migrations, which it cannot do from there: the column is there already."""
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as half_made:
        half_made.execute("CREATE TABLE metrics (key TEXT, step BIGINT)")
    MlflowStore(tmp_path, {}).apply(STARTED)
    MlflowStore(tmp_path, {}).apply(FINISHED)  # finds the run: a whole one is kept
    assert sorted(path.name for path in tmp_path.glob("mlflow.db*")) == ["mlflow.db", "mlflow.db.half-made"]


def test_a_home_has_one_tracking_process_at_a_time(tmp_path: Path, home: Path, store: MlflowStore) -> None:
    """That of a killed server ends before the next one opens the tracker; one that waited for it in vain does nothing."""
    shutil.copy(home / "mlflow.db", tmp_path / "mlflow.db")
    job = JobId("alone-13")
    entry = replace(STARTED, job=job, attempt=AttemptId("alone-13.1"))
    line = json.dumps({"seq": 1, "entry": wire.plain(Entry, entry)}) + "\n"
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / "tracking.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        orphan, heir = begun(tmp_path, line), begun(tmp_path, line)
        (tmp_path / "mlflow.db").rename(tmp_path / "hidden")
        (tmp_path / "mlflow.db").mkdir()  # the first opening fails
        assert orphan.communicate(timeout=60)[0] == ""
    assert heir.stdin is not None
    assert heir.stdout is not None
    assert '"retry": 1' in heir.stdout.readline()
    (tmp_path / "mlflow.db").rmdir()
    (tmp_path / "hidden").rename(tmp_path / "mlflow.db")
    heir.stdin.write(line)
    heir.stdin.flush()
    assert heir.stdout.readline() == '{"done": 1}\n'
    assert heir.communicate(timeout=60)[0] == ""
    assert run_of(MlflowStore(tmp_path, {}), job)


def begun(home: Path, line: str) -> "subprocess.Popen[str]":
    script = (
        "import sys; from pathlib import Path; from phalanx.record.tracking.tracking_process import main; main(Path(sys.argv[1]))"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", script, str(home)], stdin=pipe, stdout=pipe, text=True)
    assert process.stdin is not None
    process.stdin.write(line)
    process.stdin.flush()
    return process


def test_lines_that_are_no_entries_are_answered() -> None:
    def never() -> Any:
        raise AssertionError("opened for garbage")

    answers = list(serve(["garbage\n", "[]\n", "\n", '{"seq": 3}\n', '{"seq": 4, "entry": {"kind": "x"}}\n'], never))
    assert [answer["retry"] for answer in answers] == [None, None, 3, 4]


def test_a_line_without_an_entry_opens_the_tracker_and_no_more() -> None:
    applied: list[Entry] = []
    assert list(serve(['{"seq": 0, "entry": null}\n'], lambda: applied.append)) == [{"done": 0}]
    assert applied == []


def test_places_follow_the_users_own_server(tmp_path: Path) -> None:
    local = places(tmp_path, {})
    assert local.tracking_uri == local.registry_uri == f"sqlite:///{tmp_path}/mlflow.db"
    remote = places(tmp_path, {"MLFLOW_TRACKING_URI": "https://tracker.example"})
    assert (remote.tracking_uri, remote.registry_uri, remote.artifacts) == (
        "https://tracker.example",
        "https://tracker.example",
        None,
    )


def test_the_testing_switch_cannot_turn_telemetry_on(tmp_path: Path) -> None:
    environ = {"_MLFLOW_TESTING_TELEMETRY": "true", "MLFLOW_DISABLE_TELEMETRY": "false"}
    quiet(environ, tmp_path)
    assert "_MLFLOW_TESTING_TELEMETRY" not in environ
    assert environ["MLFLOW_DISABLE_TELEMETRY"] == environ["DO_NOT_TRACK"] == "true"


SPY = """
import json, sys, threading
from pathlib import Path
seen = {"sockets": [], "threads": [], "mlflow_before": None}
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        seen["sockets"].append(event)
        raise OSError("no network in tests")
sys.addaudithook(hook)
start = threading.Thread.start
def started(self):
    seen["threads"].append(self.name)
    start(self)
threading.Thread.start = started
"""
QUIET = """
from phalanx.record.tracking.tracking_process import main
seen["mlflow_before"] = "mlflow" in sys.modules
main(Path(sys.argv[1]))
Path(sys.argv[2]).write_text(json.dumps(seen))
"""
LOUD = """
from mlflow.tracking.client import MlflowClient
uri = f"sqlite:///{sys.argv[1]}/mlflow.db"
MlflowClient(tracking_uri=uri, registry_uri=uri).create_experiment("loud", artifact_location=f"file://{sys.argv[1]}/artifacts")
Path(sys.argv[2]).write_text(json.dumps(seen))
"""


def spied(script: str, tmp_path: Path, home: Path, stdin: str) -> tuple[dict[str, Any], str]:
    """Run as an ordinary user's process would: no CI, no pytest in the environment. What it did, and its stdout."""
    switches = (
        "CI",
        "PYTEST",
        "GITHUB_",
        "GITLAB_",
        "JENKINS",
        "TRAVIS",
        "MLFLOW",
        "_MLFLOW",
        "DO_NOT_TRACK",
        "BUILDKITE",
        "CIRCLECI",
        "RUNBOT",
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith(switches)}
    folder = tmp_path / "cwd"
    folder.mkdir()
    result = subprocess.run(
        [sys.executable, "-c", SPY + script, str(home), str(tmp_path / "seen.json")],
        input=stdin, capture_output=True, text=True, cwd=folder, env=environ, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert list(folder.iterdir()) == [], "nothing may appear in the working folder"
    return json.loads((tmp_path / "seen.json").read_text()), result.stdout


def test_the_process_answers_line_by_line_and_calls_nobody(tmp_path: Path, store: MlflowStore, home: Path) -> None:
    stdin = "".join(json.dumps({"seq": seq, "entry": wire.plain(Entry, entry)}) + "\n" for seq, entry in enumerate(ALL, start=1))
    seen, stdout = spied(QUIET, tmp_path, home, stdin)
    assert [json.loads(line) for line in stdout.splitlines()] == [{"done": seq} for seq in (1, 2, 3, 4)]
    assert seen == {"sockets": [], "threads": [], "mlflow_before": False}
    assert len(client(store).search_model_versions("name = 'demo'")) == 1


@pytest.mark.usefixtures("store")
def test_without_the_switches_it_would_have_called(tmp_path: Path, home: Path) -> None:
    """Shows that the test above can fail: the same spy sees MLflow's telemetry when nobody switches it off."""
    shutil.copy(home / "mlflow.db", tmp_path / "mlflow.db")
    seen, _ = spied(LOUD, tmp_path, tmp_path, "")
    assert seen["threads"]
