"""The calls of the control plane, one method each, with core.views as answers and core.errors as refusals."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self, TypeVar

import httpx

from phalanx.client import following
from phalanx.client.http import decoded, open_line
from phalanx.core import wire
from phalanx.core.errors import NotFound, WorldError
from phalanx.core.spec import JobSpec
from phalanx.core.spec_parse import checked, parse_spec
from phalanx.core.views import EventView, JobView, LedgerView, LogPage, ModelView, StatusView, StepPage, SubmitRequest, WhyView

T = TypeVar("T")
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,80}")
"""What a job's id or a model's name can look like. Anything else is not sent: it would become part of a path."""


class Client:
    """A synchronous client of one control plane. Use it as a context manager, or close it.

    Every method raises core.errors: a UserError with field, value and fix; ServerUnreachable or StoreUnavailable when the
    same call may be made again. Reading is repeated for about 1.5 s while a server starts again. `clock` (seconds) and `sleep`
    are injected; `relocate` gives (url, token) of a server that may have moved.
    """

    def __init__(
        self,
        url: str,
        token: str,
        transport: httpx.BaseTransport | None = None,
        *,
        relocate: Callable[[], tuple[str, str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._line = open_line(url.rstrip("/"), token, transport, relocate, sleep)
        self._clock = clock
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._line.http.close()

    @property
    def url(self) -> str:
        return self._line.url

    def status(self) -> StatusView:
        status: StatusView = self._line.read(StatusView, "/status")
        return status

    def submit(self, spec: JobSpec | Mapping[str, Any], workdir_pack: bytes | None = None, key: str = "") -> JobView:
        """Submit once. With a `key` (any text that the caller makes once per submit) a lost answer is asked for again, and the
        server gives back the first job; without one a lost answer raises ServerUnreachable and the outcome is unknown.

        Raises SpecError before anything is sent when the spec is not acceptable.
        """
        known = checked(spec) if isinstance(spec, JobSpec) else parse_spec(dict(spec))
        code = self._upload(workdir_pack) if workdir_pack is not None else ""
        request = SubmitRequest(spec=wire.plain(JobSpec, known), code=code, key=key)
        return self._post("/jobs", wire.dumps(SubmitRequest, request), may_repeat=bool(key))

    def jobs(self, queue: str = "", project: str = "", state: str = "", limit: int | None = None) -> tuple[JobView, ...]:
        """Newest first."""
        params: dict[str, str | int | None] = {"queue": queue, "project": project, "state": state, "limit": limit}
        jobs: tuple[JobView, ...] = self._line.read(tuple[JobView, ...], "/jobs", params)
        return jobs

    def job(self, job: str) -> JobView:
        view: JobView = self._line.read(JobView, f"/jobs/{_job(job)}")
        return view

    def why(self, job: str) -> WhyView:
        view: WhyView = self._line.read(WhyView, f"/jobs/{_job(job)}/why")
        return view

    def cancel(self, job: str) -> JobView:
        """Raises Conflict when the job has finished already."""
        return self._post(f"/jobs/{_job(job)}/cancel", "", may_repeat=False)

    def wait(self, job: str, timeout_s: float | None = None, poll_s: float = 1.0, patience_s: float = 120.0) -> JobView:
        """The job once it has finished. Raises WaitTimeout after `timeout_s`, ServerUnreachable once the server was away for
        `patience_s` on end."""
        return following.wait(self, job, timeout_s, poll_s, patience_s)

    def steps(self, job: str, after: str = "", rank: int | None = None, attempt: str = "") -> StepPage:
        """Records newer than `after`, which is the `next` of an earlier page; '' is the start."""
        page: StepPage = self._line.read(StepPage, f"/jobs/{_job(job)}/steps", {"after": after, "rank": rank, "attempt": attempt})
        return page

    def logs(self, job: str, rank: int = 0, attempt: str = "", offset: int = 0, limit: int = 65_536) -> LogPage:
        """Part of one rank's log from byte `offset` on; `attempt` '' is the newest."""
        params: dict[str, str | int | None] = {"rank": rank, "attempt": attempt, "offset": offset, "limit": limit}
        page: LogPage = self._line.read(LogPage, f"/jobs/{_job(job)}/logs", params)
        return page

    def follow_logs(
        self, job: str, rank: int = 0, attempt: str = "", poll_s: float = 0.5, patience_s: float = 120.0
    ) -> Iterator[LogPage]:
        """Pages of one rank's log as they grow, attempt after attempt, until the job has finished; only `attempt` when given.

        A page without text is not yielded. A server that is away for less than `patience_s` on end is waited for.
        """
        return following.logs(self, job, rank, attempt, poll_s, patience_s)

    def log_end(self, job: str, rank: int = 0, attempt: str = "") -> str:
        """About the last 64 KiB of one rank's log, all of a shorter one, however long it is."""
        return following.log_end(self, job, rank, attempt)

    def events(self, job: str, after: int = 0) -> tuple[EventView, ...]:
        events: tuple[EventView, ...] = self._line.read(tuple[EventView, ...], f"/jobs/{_job(job)}/events", {"after": after})
        return events

    def ledger(self, job: str = "", since_ms: int | None = None, until_ms: int | None = None) -> LedgerView:
        """Device time of a window, of one job or of everything."""
        params: dict[str, str | int | None] = {"job": _job(job) if job else "", "since_ms": since_ms, "until_ms": until_ms}
        view: LedgerView = self._line.read(LedgerView, "/ledger", params)
        return view

    def models(self, name: str = "") -> tuple[ModelView, ...]:
        """Every version of every model, or of the named one."""
        path = f"/models/{_model(name)}" if name else "/models"
        models: tuple[ModelView, ...] = self._line.read(tuple[ModelView, ...], path)
        return models

    def model(self, name: str, version: int | None = None) -> ModelView:
        """One version; without a number the newest."""
        if version is not None:
            view: ModelView = self._line.read(ModelView, f"/models/{_model(name)}/{int(version)}")
            return view
        versions = self.models(name)
        if not versions:
            raise NotFound("model", name, "no such model; `phalanx model ls` shows what there is")
        return max(versions, key=lambda one: one.version)

    def patient(self, call: Callable[[], T], patience_s: float, away: Callable[[float], None] | None = None) -> T:
        """The answer of `call`, which must be safe to repeat, once the server is there; ServerUnreachable after `patience_s`.

        `away` hears now and then for how many seconds the server has been away.
        """
        started_s = self._clock()
        while True:
            try:
                return call()
            except WorldError:
                away_s = self._clock() - started_s
                if away_s >= patience_s:
                    raise
                if away is not None:
                    away(away_s)
                self._sleep(min(1.0, max(0.1, away_s / 4)))

    def now_s(self) -> float:
        """The injected clock, for those who wait with this client."""
        return self._clock()

    def pause(self, seconds: float) -> None:
        """The injected sleep, for those who wait with this client."""
        self._sleep(seconds)

    def _upload(self, pack: bytes) -> str:
        """Content decides the name, so an upload may be repeated and a known one is left out."""
        sha = hashlib.sha256(pack).hexdigest()
        path = f"/blobs/{sha}"
        known = self._line.repeat(lambda: self._line.exchange("HEAD", path, missing_ok=True))
        if known.status_code == 404:
            self._line.repeat(lambda: self._line.exchange("PUT", path, content=pack))
        return sha

    def _post(self, path: str, body: str, may_repeat: bool) -> JobView:
        headers = {"Content-Type": "application/json"}

        def once() -> httpx.Response:
            return self._line.exchange("POST", path, content=body, headers=headers)

        response = self._line.repeat(once) if may_repeat else once()
        view: JobView = decoded(JobView, response, self.url)
        return view


def _job(job: str) -> str:
    if _ID.fullmatch(job) is None:
        raise NotFound("job", job, "no such job; `phalanx ls` shows their ids, such as tiny-lm-7")
    return job


def _model(name: str) -> str:
    if _ID.fullmatch(name) is None:
        raise NotFound("model", name, "no such model; `phalanx model ls` shows what there is")
    return name
