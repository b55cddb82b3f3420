"""The calls of the control plane, one method each, with core.views as answers and core.errors as refusals."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import httpx

from phalanx.client import artifacts, following, sharing, tracing
from phalanx.client.http import decoded, open_line
from phalanx.client.packed import check_lock
from phalanx.core import wire
from phalanx.core.chaos import Asked, FaultKind, FlipOf, planned
from phalanx.core.curves import POINTS, CurvesView
from phalanx.core.errors import NotFound, SpecError, StoreUnavailable, UserError, WorldError
from phalanx.core.profile import ProfileView
from phalanx.core.spec import JobSpec
from phalanx.core.spec_parse import checked, parse_spec
from phalanx.core.trace_request import TraceRequestView, TracesAsked, check_asked
from phalanx.core.views import (
    ArtifactView,
    DrainRequest,
    EventView,
    GcRequest,
    GcView,
    JobView,
    JoinRequest,
    JoinTokenRequest,
    JoinTokenView,
    LedgerView,
    LogPage,
    MembershipView,
    ModelView,
    NodeView,
    PlanRequest,
    PlanView,
    PolicyView,
    QueueView,
    SecretView,
    StatusView,
    StepPage,
    SubmitRequest,
    WhyView,
)

T = TypeVar("T")
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,80}")
"""What a job's id or a model's name can look like. Anything else is not sent: it would become part of a path."""
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


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

    def hurry(self, timeout_s: float) -> None:
        """From now on each call is tried once, and given up after about `timeout_s`."""
        self._line.delays_s = ()
        self._line.http.timeout = timeout_s

    def status(self) -> StatusView:
        status: StatusView = self._line.read(StatusView, "/status")
        return status

    def submit(self, spec: JobSpec | Mapping[str, Any], workdir_pack: bytes | None = None, key: str = "") -> JobView:
        """Submit once. With a `key` (any text that the caller makes once per submit) a lost answer is asked for again, and the
        server gives back the first job; without one a lost answer raises ServerUnreachable and the outcome is unknown.

        Raises SpecError before anything is sent when the spec is not acceptable.
        """
        known = _known(spec)
        check_lock(known, workdir_pack)
        code = self._upload(workdir_pack) if workdir_pack is not None else ""
        request = SubmitRequest(spec=wire.plain(JobSpec, known), code=code, key=key)
        return self._post("/jobs", wire.dumps(SubmitRequest, request), may_repeat=bool(key))

    def jobs(self, queue: str = "", project: str = "", state: str = "", limit: int | None = 100) -> tuple[JobView, ...]:
        """The newest `limit`, newest first; None is all of them."""
        params: dict[str, str | int | None] = {"queue": queue, "project": project, "state": state}
        return self._line.read_all(JobView, "/jobs", params, limit)

    def job(self, job: str) -> JobView:
        view: JobView = self._line.read(JobView, f"/jobs/{_job(job)}")
        return view

    def why(self, job: str, changes: bool = False) -> WhyView:
        """`changes`: of a job that waits also when it is expected to start, and what would start it now."""
        view: WhyView = self._line.read(WhyView, f"/jobs/{_job(job)}/why", {"changes": "true" if changes else ""})
        return view

    def plan(self, spec: JobSpec | Mapping[str, Any]) -> PlanView:
        """What would be decided of the job if it were submitted now. Nothing is. Raises SpecError."""
        known = _known(spec)
        body = wire.dumps(PlanRequest, PlanRequest(spec=wire.plain(JobSpec, known)))
        view: PlanView = self._posted(PlanView, "/plan", body, may_repeat=True)
        return view

    def snapshot(self) -> bytes:
        """All that the newest decision was made from, as JSON for `phalanx sim replay`."""
        return self._line.repeat(lambda: self._line.exchange("GET", "/snapshot")).content

    def cancel(self, job: str, array: bool = False) -> JobView:
        """With `array` all jobs of its array. Raises Conflict when there is nothing left to cancel."""
        return self._post(f"/jobs/{_job(job)}/cancel{'?array=true' if array else ''}", "", may_repeat=False)

    def pause(self, job: str) -> JobView:
        """The job lets go of its devices until it is resumed; twice is once. Raises Conflict when it has finished or ends."""
        return self._post(f"/jobs/{_job(job)}/pause", "", may_repeat=True)

    def resume(self, job: str) -> JobView:
        """A paused job waits for devices again; one that goes on anyway is left alone. Raises Conflict when it cannot."""
        return self._post(f"/jobs/{_job(job)}/resume", "", may_repeat=True)

    def retry(self, job: str) -> JobView:
        """Opens a job that failed or was cancelled again. Raises Conflict for any other."""
        return self._post(f"/jobs/{_job(job)}/retry", "", may_repeat=False)

    def chaos(
        self,
        job: str,
        fault: FaultKind,
        *,
        rank: int | None = None,
        step: int | None = None,
        for_ms: int | None = None,
        slow_ms: int | None = None,
        flip: FlipOf | None = None,
    ) -> JobView:
        """Plans a fault in the job's running attempt, see docs/chaos.md: at `step` of `rank`, or at its next one. Raises Conflict
        for a job whose file does not allow it, that does not run, or is beyond the step; SpecError."""
        asked = Asked(fault=fault, rank=rank, step=step, for_ms=for_ms, slow_ms=slow_ms, flip=flip)
        planned(asked, 1)  # what can be told here is not sent
        return self._post(f"/jobs/{_job(job)}/chaos", wire.dumps(Asked, asked), may_repeat=False)

    def wait(self, job: str, timeout_s: float | None = None, poll_s: float = 1.0, patience_s: float = 120.0) -> JobView:
        """The job once it has finished; a paused one is waited for until it is resumed and ends.

        Raises WaitTimeout after `timeout_s`, ServerUnreachable once the server was away for `patience_s` on end."""
        return following.wait(self, job, timeout_s, poll_s, patience_s)

    def steps(self, job: str, after: str = "", rank: int | None = None, attempt: str = "") -> StepPage:
        """Records newer than `after`, which is the `next` of an earlier page; '' is the start."""
        page: StepPage = self._line.read(StepPage, f"/jobs/{_job(job)}/steps", {"after": after, "rank": rank, "attempt": attempt})
        return page

    def curves(self, job: str, rank: int = 0, points: int = POINTS) -> CurvesView:
        """Loss, gradient norm, throughput and the phases of steps over a whole run: about `points` means of one rank's records."""
        params: dict[str, str | int | None] = {"rank": rank, "points": points}
        view: CurvesView = self._line.read(CurvesView, f"/jobs/{_job(job)}/curves", params)
        return view

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

    def events(
        self,
        job: str | None = None,
        after: int = 0,
        *,
        limit: int | None = None,
        kind: str = "",
        since_ms: int | None = None,
        newest: bool = False,
    ) -> tuple[EventView, ...]:
        """The log beyond event `after`, oldest first, of one job or of everything: a page of at most `limit`, the server's most
        without one. `newest`: the last ones instead of the first."""
        path = f"/jobs/{_job(job)}/events" if job is not None else "/events"
        bounds: dict[str, str | int | None] = {"limit": limit, "kind": kind, "since_ms": since_ms}
        params = {"after": after, **bounds, "newest": "true" if newest else None}
        events: tuple[EventView, ...] = self._line.read(tuple[EventView, ...], path, params)
        return events

    def nodes(self) -> tuple[NodeView, ...]:
        return self._line.read_all(NodeView, "/nodes")

    def node(self, node: str) -> NodeView:
        """One node, with its tag. Raises NotFound."""
        view: NodeView = self._line.read(NodeView, f"/nodes/{_node(node)}")
        return view

    def drain(self, node: str, reason: str, now: bool = False) -> NodeView:
        """Places nothing new on the node; with `now` its gangs are stopped and start again elsewhere."""
        body = wire.dumps(DrainRequest, DrainRequest(reason=reason, now=now))
        view: NodeView = self._posted(NodeView, f"/nodes/{_node(node)}/drain", body, may_repeat=True)
        return view

    def undrain(self, node: str) -> NodeView:
        """The node may be given work again."""
        view: NodeView = self._posted(NodeView, f"/nodes/{_node(node)}/undrain", "", may_repeat=True)
        return view

    def policy(self) -> PolicyView:
        """How the fleet is shared."""
        return sharing.policy(self._line)

    def set_policy(self, policy: Mapping[str, Any], dry_run: bool = False, tag: str = "") -> PolicyView:
        """Puts `policy`, as a policy file has it, in the place of the whole one; `dry_run` only checks it. tag: of the one that was
        read, from its view. Raises SpecError, and Stale where another than that one is in force."""
        return sharing.set_policy(self._line, policy, dry_run, self.url, tag)

    def queues(self) -> tuple[QueueView, ...]:
        """Every queue that is configured, has jobs or has had devices, each with those below it."""
        return sharing.queues(self._line)

    def make_join_token(self, lifetime_ms: int) -> JoinTokenView:
        """A token that lets one node join. It is not told again: whoever loses the answer makes another."""
        body = wire.dumps(JoinTokenRequest, JoinTokenRequest(lifetime_ms=lifetime_ms))
        view: JoinTokenView = self._posted(JoinTokenView, "/agent/tokens", body, may_repeat=False)
        return view

    def join(self, node: str, credential_sha256: str) -> MembershipView:
        """With a join token as this client's token: lets the credential of that hash stand for `node`. Twice is once."""
        body = wire.dumps(JoinRequest, JoinRequest(node=node, credential_sha256=credential_sha256))
        view: MembershipView = self._posted(MembershipView, "/agent/join", body, may_repeat=True)
        return view

    def membership(self) -> MembershipView:
        """With a node's credential as this client's token: which node it stands for. Raises Unauthorized when for none."""
        view: MembershipView = self._line.read(MembershipView, "/agent/membership")
        return view

    def revoke_node(self, node: str) -> None:
        """The credential by which the node joined opens nothing any more. Raises NotFound when there is none."""
        self._line.exchange("DELETE", f"/agent/credentials/{_node(node)}")

    def ledger(self, job: str = "", since_ms: int | None = None, until_ms: int | None = None) -> LedgerView:
        """Device time of a window, of one job or of everything."""
        params: dict[str, str | int | None] = {"job": _job(job) if job else "", "since_ms": since_ms, "until_ms": until_ms}
        view: LedgerView = self._line.read(LedgerView, "/ledger", params)
        return view

    def collect(self, older_than: str = "30d", dry_run: bool = False) -> GcView:
        """Begins to remove what jobs left that finished that long ago; `collection` shows how it goes. Raises Conflict while
        another collection runs."""
        body = wire.dumps(GcRequest, GcRequest(older_than=older_than, dry_run=dry_run))
        view: GcView = self._posted(GcView, "/gc", body, may_repeat=False)
        return view

    def collection(self) -> GcView:
        """The collection that runs, or the last one since the server started."""
        view: GcView = self._line.read(GcView, "/gc")
        return view

    def models(self, name: str = "") -> tuple[ModelView, ...]:
        """Every version of every model, or of the named one."""
        path = f"/models/{_model(name)}" if name else "/models"
        return self._line.read_all(ModelView, path)

    def model(self, name: str, version: int | None = None) -> ModelView:
        """One version; without a number the newest."""
        if version is not None:
            view: ModelView = self._line.read(ModelView, f"/models/{_model(name)}/{int(version)}")
            return view
        versions = self.models(name)
        if not versions:
            raise NotFound("model", name, "no such model; `phalanx model ls` shows what there is")
        return max(versions, key=lambda one: one.version)

    def artifacts(self, job: str, attempt: str = "") -> tuple[ArtifactView, ...]:
        """Newest version of each file that ranks gave, of all attempts or of one; by attempt and name."""
        return self._line.read_all(ArtifactView, f"/jobs/{_job(job)}/artifacts", {"attempt": attempt})

    def artifact(self, job: str, name: str, attempt: str = "") -> ArtifactView:
        """The file of that name, of the newest attempt that has it or of `attempt`. Raises NotFound."""
        params = {"name": name, "attempt": attempt}
        view: ArtifactView = self._line.read(ArtifactView, f"/jobs/{_job(job)}/artifact", params)
        return view

    def save_artifact(self, artifact: ArtifactView, out: Path, force: bool = False) -> None:
        """Writes its bytes to `out`, checked, whole or not at all. Raises Conflict where something is already and not `force`."""
        artifacts.save(self._line, artifact, out, force)

    def profile(self, job: str, attempt: str = "", first: int = 0) -> ProfileView:
        """What the traces of a job's ranks say: of its newest attempt that has any, or of `attempt`; those that begin with step
        `first`, else the last ones. Raises NotFound where there are none."""
        params: dict[str, str | int | None] = {"attempt": attempt, "first": first}
        view: ProfileView = self._line.read(ProfileView, f"/jobs/{_job(job)}/profile", params)
        return view

    def request_traces(self, job: str, steps: int, ranks: Sequence[int] = ()) -> TraceRequestView:
        """Asks the running job to trace `steps` of its next steps on all ranks, or on `ranks`: see docs/profile.md.

        Raises Conflict for a job that does not run, cannot hear of it, is too near its end or was asked for others; SpecError."""
        asked = TracesAsked(steps=steps, ranks=tuple(ranks))
        check_asked(asked)  # what can be told here is not sent
        body = wire.dumps(TracesAsked, asked)
        view: TraceRequestView = self._posted(TraceRequestView, f"/jobs/{_job(job)}/profile", body, may_repeat=False)
        return view

    def trace_request(self, job: str, attempt: str = "", number: int = 0) -> TraceRequestView:
        """How far a request of an attempt is; without a name the newest of the newest. Raises NotFound."""
        params: dict[str, str | int | None] = {"attempt": attempt, "number": number}
        view: TraceRequestView = self._line.read(TraceRequestView, f"/jobs/{_job(job)}/profile/request", params)
        return view

    def follow_traces(self, asked: TraceRequestView, poll_s: float = 1.0, patience_s: float = 120.0) -> Iterator[TraceRequestView]:
        """How the request comes on, until each rank's summary is there or will not be: `profile` has them then. Raises
        ServerUnreachable once the server was away for `patience_s` on end."""
        return tracing.follow(self, asked, poll_s, patience_s)

    def secrets(self) -> tuple[SecretView, ...]:
        """Names and dates of the stored secrets; no call gives a value back."""
        return self._line.read_all(SecretView, "/secrets")

    def set_secret(self, name: str, value: bytes) -> None:
        """Stores `value` under `name`, in place of an older one. Raises SpecError, without the value in it."""
        path, headers = f"/secrets/{checked_secret(name)}", {"Content-Type": "application/octet-stream"}
        self._line.repeat(lambda: self._line.exchange("PUT", path, content=value, headers=headers))

    def remove_secret(self, name: str) -> None:
        """Raises NotFound when it is not stored."""
        self._line.exchange("DELETE", f"/secrets/{checked_secret(name)}")

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

    def rest(self, seconds: float) -> None:
        """The injected sleep, for those who wait with this client."""
        self._sleep(seconds)

    def _upload(self, pack: bytes) -> str:
        """Content decides the name, so an upload may be repeated and a known one is left out."""
        sha = hashlib.sha256(pack).hexdigest()
        path = f"/blobs/{sha}"
        try:
            known = self._line.repeat(lambda: self._line.exchange("HEAD", path, missing_ok=True)).is_success
        except (UserError, StoreUnavailable):
            known = False  # an answer to HEAD has no words; what is wrong the PUT is told
        if not known:
            self._line.repeat(lambda: self._line.exchange("PUT", path, content=pack))
        return sha

    def _post(self, path: str, body: str, may_repeat: bool) -> JobView:
        view: JobView = self._posted(JobView, path, body, may_repeat)
        return view

    def _posted(self, kind: Any, path: str, body: str, may_repeat: bool) -> Any:
        headers = {"Content-Type": "application/json"}

        def once() -> httpx.Response:
            return self._line.exchange("POST", path, content=body, headers=headers)

        return decoded(kind, self._line.repeat(once) if may_repeat else once(), self.url)


def _job(job: str) -> str:
    if _ID.fullmatch(job) is None:
        raise NotFound("job", job, "no such job; `phalanx ls` shows their ids, such as tiny-lm-7")
    return job


def _node(node: str) -> str:
    if _NODE.fullmatch(node) is None:
        raise NotFound("node", node, "no such node; `phalanx node ls` shows their names")
    return node


def _model(name: str) -> str:
    if _ID.fullmatch(name) is None:
        raise NotFound("model", name, "no such model; `phalanx model ls` shows what there is")
    return name


def checked_secret(name: str) -> str:
    """`name` as that of a secret. Raises SpecError."""
    if _VARIABLE.fullmatch(name) is None:
        raise SpecError("secret", name, "name secrets with letters, digits and '_', at most 64, not beginning with a digit")
    return name


def _known(spec: object) -> JobSpec:
    """Raises SpecError."""
    if isinstance(spec, str | Path):
        raise SpecError("job", str(spec), "give a mapping of its fields, or load_spec(path) of `core.spec_parse` for a job file")
    return checked(spec) if isinstance(spec, JobSpec) else parse_spec(dict(spec) if isinstance(spec, Mapping) else spec)
