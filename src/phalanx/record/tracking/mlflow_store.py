"""Applies outbox entries to MLflow, in process: its store in `home/mlflow.db`, or where the user's MLFLOW_TRACKING_URI says.

Applying an entry again changes nothing: a run is found by its job's tag, a model version by the job's and our version's. MLflow
is imported when the first store is made (1-3 s of CPU), after its telemetry was switched off; both URIs are always given, or it
would make a database in the working folder.
"""

import importlib
import os
import re
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath
from typing import Any, Final
from uuid import uuid4

from phalanx.core.errors import PhalanxError, StoreUnavailable, UserError
from phalanx.core.ids import JobId, split_attempt
from phalanx.core.imports import long_imports
from phalanx.record.tracking.entries import Entry, MetricPoint, MetricPoints, ModelVersion, RunFinished, RunStarted, RunWaits
from phalanx.storage.atomic import write_atomic

METRICS_PER_BATCH: Final = 1_000
PARAMS_PER_BATCH: Final = 100
"""MLflow's own limits of one batch (mlflow/utils/validation.py)."""

_KEY_CHARS_MAX: Final = 250
_PARAM_CHARS_MAX: Final = 6_000
_TAG_CHARS_MAX: Final = 8_000

_BAD_KEY_CHARS: Final = re.compile(r"[^\w.\-/ :]")
_JOB_TAG: Final = "phalanx.job"
_HOME_TAG: Final = "phalanx.home"
_VERSION_TAG: Final = "phalanx.version"

_REFUSED: Final = frozenset({"INVALID_PARAMETER_VALUE", "INVALID_STATE"})
"""MLflow's codes for an entry that no repetition will make good."""

_AWAY: Final = frozenset(
    {
        "TEMPORARILY_UNAVAILABLE",
        "RESOURCE_EXHAUSTED",
        "RESOURCE_LIMIT_EXCEEDED",
        "REQUEST_LIMIT_EXCEEDED",
        "DEADLINE_EXCEEDED",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "CUSTOMER_UNAUTHORIZED",
    }
)
"""MLflow's codes for a tracker that is away, busy, or does not let us in: no entry's fault, so each of them waits."""

_AWAY_STATUS: Final = re.compile(r"error code (429|502|503|504)\b")
_NO_FILE: Final = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


class EntryRefused(UserError):
    """The tracker will never take this entry. Our own log and series still have all of it."""


class EntryFailed(PhalanxError):
    """This entry failed while the tracker is there: perhaps a hiccup, perhaps for ever. Worth a few tries."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where MLflow keeps things. artifacts: base URI of new experiments, None to let a remote server choose."""

    tracking_uri: str
    registry_uri: str
    artifacts: str | None


def places(home: Path, environ: Mapping[str, str]) -> Places:
    """The user's tracking server where they name one, else files in `home`."""
    local = f"sqlite:///{home.resolve() / 'mlflow.db'}"
    tracking = environ.get("MLFLOW_TRACKING_URI", "").strip()
    artifacts = (home.resolve() / "mlflow-artifacts").as_uri()
    return Places(
        tracking or local, environ.get("MLFLOW_REGISTRY_URI", "").strip() or tracking or local, None if tracking else artifacts
    )


def quiet(environ: MutableMapping[str, str], home: Path) -> None:
    """Switch off MLflow's telemetry and shorten its patience; to be called before its first import in the process.

    It otherwise starts a thread that fetches its configuration from the net. The testing switch would turn it on again.
    """
    environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    environ["DO_NOT_TRACK"] = "true"
    environ.pop("_MLFLOW_TESTING_TELEMETRY", None)
    environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # the outbox tries again; minutes inside one call help nobody
    environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    # Of MLflow's default experiment, which it makes unasked; ours get their place explicitly.
    environ.setdefault("_MLFLOW_SERVER_ARTIFACT_ROOT", (home.resolve() / "mlflow-artifacts").as_uri())


class MlflowStore:
    """Runs and model versions in MLflow. One entry at a time."""

    def __init__(self, home: Path, environ: MutableMapping[str, str] = os.environ) -> None:
        """Raises StoreUnavailable when the store cannot be opened now."""
        quiet(environ, home)
        warnings.filterwarnings("ignore", message=".*noload.*")  # MLflow 3 with SQLAlchemy 2.1
        self._places = places(home, environ)
        self._home = _home_id(home)
        self._runs: dict[JobId, str] = {}
        with _mlflow():
            self._probe()
            self._set_half_made_aside()
            with long_imports():  # some of them when the client is made
                client = importlib.import_module("mlflow.tracking.client").MlflowClient
                self._client: Any = client(tracking_uri=self._places.tracking_uri, registry_uri=self._places.registry_uri)
            self._entities: Any = importlib.import_module("mlflow.entities")
            self._errors: Any = importlib.import_module("mlflow.exceptions")

    def apply(self, entry: Entry) -> None:
        """Make the tracker know `entry`. Raises StoreUnavailable (again, however long), EntryFailed (a few times), EntryRefused."""
        with _mlflow(type(entry).__name__):
            self._probe()
            match entry:
                case RunStarted():
                    self._run_started(entry)
                case RunWaits(job=job, detail=detail):
                    self._client.set_tag(self._run_of(job), "phalanx.detail", detail)
                    self._client.update_run(self._run_of(job), status="SCHEDULED")
                case MetricPoints(job=job, points=points):
                    self._metric_points(self._run_of(job), points)
                case RunFinished():
                    self._run_finished(entry)
                case ModelVersion():
                    self._model_version(entry)

    def _probe(self) -> None:
        """Fail at once when our own database cannot be written: MLflow would wait and try again for minutes, inside the call."""
        if self._places.artifacts is None:
            return
        with closing(
            sqlite3.connect(self._places.tracking_uri.removeprefix("sqlite:///"), timeout=1.0, isolation_level=None)
        ) as probe:
            probe.execute("BEGIN IMMEDIATE")
            probe.execute("ROLLBACK")

    def _set_half_made_aside(self) -> None:
        """A process killed in MLflow's first migrations left a database that none after it can finish. MLflow makes its default
        experiment last of all, so one without any has nothing in it."""
        if self._places.artifacts is None:
            return
        path = Path(self._places.tracking_uri.removeprefix("sqlite:///"))
        with closing(sqlite3.connect(path, timeout=1.0)) as database:
            made = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone()
            whole = made is not None and database.execute("SELECT 1 FROM experiments").fetchone() is not None
        if not whole and path.stat().st_size:
            path.replace(path.with_name(f"{path.name}.half-made"))

    def _run_started(self, entry: RunStarted) -> None:
        run = self._find_run(entry.job)
        if run is None:
            tags = {**entry.tags, _JOB_TAG: entry.job, _HOME_TAG: self._home, "mlflow.user": entry.tags.get("phalanx.by", "")}
            made = self._client.create_run(self._experiment(entry.project), entry.at_ms, _tags(tags), entry.job)
            run = self._runs[entry.job] = made.info.run_id
        else:
            self._client.update_run(run, status="RUNNING")  # it may have waited, or even been over
            self._client.set_tag(run, "phalanx.detail", "")
        self._params(run, entry)

    def _params(self, run: str, entry: RunStarted) -> None:
        """A parameter that changed since the first attempt is this attempt's; MLflow would refuse to change it."""
        known = self._client.get_run(run).data.params
        wanted = {safe_key(key): value[:_PARAM_CHARS_MAX] for key, value in entry.params.items()}
        own = f"attempt-{split_attempt(entry.attempt)[1]}"
        named = {key if known.get(key, value) == value else safe_key(f"{own}/{key}"): value for key, value in wanted.items()}
        fresh = [self._entities.Param(key, value) for key, value in named.items() if key not in known]
        for start in range(0, len(fresh), PARAMS_PER_BATCH):
            self._client.log_batch(run, params=fresh[start : start + PARAMS_PER_BATCH])
        self._client.set_tag(run, "phalanx.attempt", entry.attempt)

    def _metric_points(self, run: str, points: Sequence[MetricPoint]) -> None:
        for start in range(0, len(points), METRICS_PER_BATCH):
            batch = points[start : start + METRICS_PER_BATCH]
            metrics = [self._entities.Metric(safe_key(point.name), point.value, point.at_ms, point.step) for point in batch]
            self._client.log_batch(run, metrics=metrics)

    def _run_finished(self, entry: RunFinished) -> None:
        run = self._run_of(entry.job)
        for key, value in _tags({"phalanx.attempts": ",".join(entry.attempts), "phalanx.detail": entry.detail}).items():
            self._client.set_tag(run, key, value)
        self._client.set_terminated(run, entry.status, entry.at_ms)

    def _model_version(self, entry: ModelVersion) -> None:
        if not Path(entry.path).is_absolute():
            raise EntryRefused("path", entry.path, "a model lies at an absolute path")
        run = self._run_of(entry.job)
        mine = {_VERSION_TAG: str(entry.version), _JOB_TAG: entry.job, _HOME_TAG: self._home}
        found = self._client.search_model_versions(f"name = {_quoted(entry.name)} and run_id = {_quoted(run)}")
        if any(mine.items() <= version.tags.items() for version in found):
            return
        self._registered_model(entry.name)
        tags = {
            **mine,
            "phalanx.attempt": entry.attempt,
            "phalanx.weights_digest": entry.weights_digest,
            **{safe_key(f"lineage.{key}"): value for key, value in entry.lineage.items()},
            **{safe_key(f"metric.{key}"): repr(value) for key, value in entry.metrics.items()},
        }
        self._client.create_model_version(
            entry.name, Path(entry.path).as_uri(), run, tags=_tags(tags), description=f"made by {entry.job}"
        )

    def _registered_model(self, name: str) -> None:
        try:
            self._client.create_registered_model(name)
        except self._errors.MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _experiment(self, project: str) -> str:
        found = self._client.get_experiment_by_name(project)
        if found is None:
            where = None if self._places.artifacts is None else f"{self._places.artifacts}/{project}"
            return str(self._client.create_experiment(project, artifact_location=where))
        if found.lifecycle_stage == "deleted":  # by a user; without it nothing of the project could be tracked any more
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _run_of(self, job: JobId) -> str:
        run = self._find_run(job)
        if run is None:
            raise EntryRefused("job", job, "its run is gone from the tracker, so nothing can be added to it")
        return run

    def _find_run(self, job: JobId) -> str | None:
        """By tag, so that a run made just before a crash is found and no second one made."""
        if job not in self._runs:
            everywhere = [one.experiment_id for one in self._client.search_experiments(view_type=self._entities.ViewType.ALL)]
            query = f"tags.`{_JOB_TAG}` = {_quoted(job)} and tags.`{_HOME_TAG}` = {_quoted(self._home)}"
            found = self._client.search_runs(everywhere, query, self._entities.ViewType.ALL, max_results=1)
            if not found:
                return None
            self._runs[job] = found[0].info.run_id
        return self._runs[job]


def safe_key(name: str) -> str:
    """`name` with what MLflow refuses in names of metrics, parameters and tags replaced by '_'."""
    key = _BAD_KEY_CHARS.sub("_", name)[:_KEY_CHARS_MAX]
    if not key or key.startswith(("/", ".")) or key != normpath(key):
        return re.sub(r"^\.+|/", "_", key) or "_"
    return key


@contextmanager
def _mlflow(entry: str = "") -> Iterator[None]:
    """Whatever MLflow, SQLAlchemy, requests or the disk raise becomes one of our three. Opening (no entry) can only be put off."""
    try:
        yield
    except EntryRefused:
        raise
    except Exception as error:  # a foreign library's full tree; the outbox keeps the entry whatever it was
        if entry and getattr(error, "error_code", "") in _REFUSED:
            raise EntryRefused(entry, str(error)[:500], "the tracker will not take it; it stays in our own log") from error
        words = f"tracker: {type(error).__name__}: {str(error)[:500]}"
        raise (EntryFailed(words) if entry and not _is_away(error) else StoreUnavailable(words)) from error


def _is_away(error: BaseException | None) -> bool:
    """Whether a connection, a lock, a full disk or a refused login is behind `error`, which says nothing about the entry."""
    while error is not None:
        lost = isinstance(error, OSError) and not isinstance(error, _NO_FILE)  # of requests' errors too
        locked = isinstance(error, sqlite3.OperationalError) or type(error).__name__ == "OperationalError"  # SQLAlchemy's, others'
        if lost or locked or getattr(error, "error_code", "") in _AWAY or _AWAY_STATUS.search(str(error)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _home_id(home: Path) -> str:
    """Tells this home's jobs from those of others that write to the same tracking server."""
    path = home / "tracking-id"
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        write_atomic(path, uuid4().hex.encode(), 0o600)
        return path.read_text(encoding="ascii")


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {safe_key(key): value[:_TAG_CHARS_MAX] for key, value in tags.items()}


def _quoted(text: str) -> str:
    """A literal of MLflow's search language, which has no escapes; our names are DNS labels and never need one."""
    if "'" in text or "\\" in text:
        raise EntryRefused("name", text, "a name with a quote cannot be looked up")
    return f"'{text}'"
