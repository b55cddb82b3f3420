"""What the API answers: shared by the server, the Python client and the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import Strict

from phalanx.core.devices import Device
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.isolation import Isolation
from phalanx.core.messages import RankExit
from phalanx.core.records import NAN_AS_TEXT, Metric, StepRecord
from phalanx.core.wire import CLOSED

Flag = Annotated[bool, Strict()]
"""In what is asked for: 0 and 1 are no answers to a yes or no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The newest step of the current attempt. `eta_ms`, by the mean of many steps, is None until a rate is known. data_wait_*,
    images_per_s: as in StepRecord."""

    __pydantic_config__ = NAN_AS_TEXT

    step: int
    total_steps: int
    loss: float
    tokens_per_s: float
    mfu: float
    eta_ms: int | None
    data_wait_ms: int = 0
    data_wait_cause: str = ""
    images_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank of the current or last attempt."""

    rank: int
    node: NodeId
    device: int
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryView:
    """A fault that the gang healed inside the attempt, or its growth after one; fields as in core.records.Recovered."""

    at_ms: int
    generation: int
    why: str
    replaced: tuple[int, ...]
    step: int
    steps_lost: int
    recovery_ms: int
    absent: tuple[int, ...] = ()
    planned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultView:
    """A fault that `by` asked for; `sentence` says what, where and when. `met`: in words, what became of it; '' is nothing yet."""

    number: int
    fault: str
    sentence: str
    by: str
    at_ms: int
    met: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One launch of a job. Times are Unix milliseconds; None where it has not come to that."""

    attempt: AttemptId
    placed_ms: int
    running_ms: int | None
    ended_ms: int | None
    detail: str
    exits: tuple[RankExit, ...]
    resumed_step: int | None
    ranks: tuple[RankView, ...]
    recoveries: tuple[RecoveryView, ...] = ()
    faults: tuple[FaultView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """A committed checkpoint."""

    attempt: AttemptId
    step: int
    path: str
    digest: str
    size_bytes: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """What was found wrong with an attempt while it ran, in one sentence. `kind` as in docs/health.md."""

    attempt: AttemptId
    kind: str
    step: int
    sentence: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as `describe` shows it. `state` is one of pending, starting, running, stopping, paused, finished. `collected_ms`: when
    its logs, checkpoints and other files became garbage. `array`: id of the first job of the array it is of, and its number
    there. `deadline_ms`: when it should be done (Unix time); `late`: in words, that it is not, or may not be. `saves`: how often it
    saves where it decides that itself, and what it goes by. `findings`: what was found wrong while it ran, of each attempt the
    newest, in the order of attempts. `checkpoints_at`: the folder or URL below which it saves."""

    id: JobId
    name: str
    project: str
    kind: str
    queue: str
    priority: int
    state: str
    outcome: str | None
    detail: str
    why: str | None
    restarts: int
    num_nodes: int
    devices: str
    submitted_by: str
    submitted_ms: int
    started_ms: int | None
    finished_ms: int | None
    code: str
    config: str
    spec: Mapping[str, Any]
    progress: Progress | None
    attempts: tuple[AttemptView, ...]
    checkpoints: tuple[CheckpointView, ...]
    model: str | None
    collected_ms: int | None = None
    array: str = ""
    array_index: int = 0
    deadline_ms: int | None = None
    late: str = ""
    saves: str = ""
    findings: tuple[FindingView, ...] = ()
    team: str = ""
    checkpoints_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtaView:
    """The job is expected to start from `low_ms` to `high_ms` (Unix time) with a probability of 80 %. vague: that is too wide to be
    of use. latest_ms: by when it starts at the latest if no other job comes first, where limits or the policy's times say so."""

    low_ms: int
    high_ms: int
    vague: bool = False
    latest_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeView:
    """A field of the spec that would start the job now: `value` to write, where it is `was`; '' is to leave it out."""

    field: str
    value: str
    was: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyView:
    """Why a job is where it is: one sentence, and for a waiting job the typed reason and its place in the line.

    eta: when it is expected to start. changes: the smallest ones that would start it now, the smallest first; None when nobody
    asked for them, or the job does not wait. late: that its deadline has passed, or may not be kept; '' of any other job. ends,
    ends_ms: gangs that are ended for it when they are old enough, which is then (Unix time), as things are now. smaller: of these
    the ones that go on with fewer devices.
    """

    job: JobId
    state: str
    sentence: str
    reason: Mapping[str, Any] | None
    position: int | None
    eta: EtaView | None = None
    changes: tuple[ChangeView, ...] | None = None
    late: str = ""
    ends: tuple[JobId, ...] = ()
    ends_ms: int | None = None
    smaller: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node of the fleet. `state` is up or away; `drained` says why nothing new is placed on it, '' when it is; `features` are
    those of its agent; `isolation` is how it keeps jobs apart, None of one that does not say. tag: the ETag of what somebody may
    have changed of it. exposed: why it is given no jobs though it is not drained: teams do not trust each other, and it does not
    keep jobs apart."""

    node: NodeId
    state: str
    address: str
    devices: tuple[Device, ...]
    held: Mapping[int, AttemptId]
    cpus: float
    memory_bytes: int
    seen_ms: int
    drained: str = ""
    features: tuple[str, ...] = ()
    isolation: Isolation | None = None
    tag: str = ""
    exposed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The platform at a glance. `devices_are` says in words what a device is here: GPUs or CPU slots. Of the newest ticks `tick_ms`
    is the median, `tick_ms_max` the longest. database: which one, without its password. trust: whether jobs are kept apart, or
    share a single trust domain and why."""

    version: str
    home: str
    url: str
    epoch: int
    devices_are: str
    devices_total: int
    devices_held: int
    jobs: Mapping[str, int]
    nodes: tuple[NodeView, ...]
    outbox: int
    processes: Mapping[str, int]
    tick_ms: float = 0.0
    tick_ms_max: float = 0.0
    database: str = ""
    trust: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPage:
    """Records of steps and metrics in arrival order. Ask again with `next` for what came later."""

    steps: tuple[StepRecord, ...]
    metrics: tuple[Metric, ...]
    attempts: tuple[AttemptId, ...]
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Part of one rank's log. `ended`: the attempt is over and nothing follows `next_offset`."""

    attempt: AttemptId
    rank: int
    offset: int
    next_offset: int
    text: str
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """A model version with its lineage."""

    __pydantic_config__ = NAN_AS_TEXT

    name: str
    version: int
    job: JobId
    path: str
    weights_digest: str
    metrics: Mapping[str, float]
    lineage: Mapping[str, str]
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerView:
    """Device time in [since_ms, until_ms) by category, in milli-devices x milliseconds; the categories sum to `capacity`.

    cost: in `currency`, by the catalogue's price of each device type; None where the catalogue has none.
    """

    job: JobId | None
    since_ms: int
    until_ms: int
    capacity: int
    categories: Mapping[str, int]
    balanced: bool
    devices_are: str
    cost: float | None
    currency: str = "USD"
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """One event of the log, as data."""

    seq: int
    at_ms: int
    kind: str
    job: JobId | None
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """Body of POST /jobs. `key` makes a repeated submit return the first job instead of a second."""

    __pydantic_config__ = CLOSED

    spec: Mapping[str, Any]
    code: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Body of POST /plan."""

    __pydantic_config__ = CLOSED

    spec: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedView:
    """Devices of one node that the job would get. price: US dollars per device and hour; None where none is known."""

    node: NodeId
    type: str
    devices: tuple[int, ...]
    price: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEffectView:
    """What a queue, or one that it is part of, would hold of the job's type, `after` with the whole job; a share of a device is a
    fraction. None where it has no quota or limit of it."""

    queue: str
    held: float
    after: float
    quota: int | None
    limit: int | None
    budget: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """What would be decided of a job, if it were submitted now. Nothing was.

    answer: starts, waits, or never (it fits no fleet of these nodes). placed: where it would start. evicts: running jobs that would
    end for it, or go on smaller. cost_per_hour, cost_of_limit: US dollars, of an hour, and of one attempt that runs to its
    `max_duration`; None where a price or a limit is not known. queues: its own and those that it is part of. num_devices: a share
    of one is a fraction. jobs: so many are in the array; all the rest is of one of them. region: where the fleet is; '' when its
    policy does not say.
    ends, ends_ms: gangs that would be ended for it when they are old enough, which is then (Unix time). smaller: of `evicts` and
    `ends` the ones that go on with fewer devices.
    """

    answer: str
    sentence: str
    type: str
    num_devices: float
    placed: tuple[PlacedView, ...]
    evicts: tuple[JobId, ...]
    reason: Mapping[str, Any] | None
    position: int | None
    eta: EtaView | None
    changes: tuple[ChangeView, ...]
    cost_per_hour: float | None
    cost_of_limit: float | None
    queues: tuple[QueueEffectView, ...]
    as_of_ms: int
    currency: str = "USD"
    notes: tuple[str, ...] = ()
    jobs: int = 1
    region: str = ""
    ends: tuple[JobId, ...] = ()
    ends_ms: int | None = None
    smaller: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """How the fleet is shared: the policy as a mapping, as a policy file has it; what nobody set is left out. warnings: what is
    acceptable but may not be meant. tag: its ETag, by which a writer says which policy it was that it read."""

    policy: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest:
    """Body of PUT /policy. `dry_run`: only check it."""

    __pydantic_config__ = CLOSED

    policy: Mapping[str, Any]
    dry_run: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue, with those below it. By device type: `held`, `quota` guaranteed, `limit`, and what of `held` is `borrowed`: beyond
    its quota, or without one beyond what nobody is guaranteed; a share of a device is a fraction.

    used_hours: device-hours that count in its fair share, older ones less. spent_hours, spent_usd: in the period of its budget.
    """

    name: str
    parent: str
    weight: float
    running: int
    waiting: int
    held: Mapping[str, float]
    quota: Mapping[str, int]
    limit: Mapping[str, int]
    borrowed: Mapping[str, float]
    used_hours: float
    spent_hours: float
    spent_usd: float
    budget: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretView:
    """What may be seen of a stored secret: its name, whose it is, and when its value was last set. The value never is. team: ''
    is the platform's own. tag: its ETag, another one for each value that was set."""

    name: str
    set_ms: int
    team: str = ""
    tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRotatedView:
    """`secrets`: how many values are sealed with the new key."""

    secrets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest:
    """Body of POST /nodes/{node}/drain. `now`: gangs that run there are stopped, and start again elsewhere."""

    __pydantic_config__ = CLOSED

    reason: str
    now: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltRequest:
    """Body of POST /halt. `but`: the node that whoever asks ends by itself."""

    __pydantic_config__ = CLOSED

    but: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltView:
    """left: the other nodes where ranks still live, or may. busy: more comes of waiting."""

    left: tuple[NodeId, ...]
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DownView:
    """What `down` did in a home. stopped: whether anything was running. left: joined nodes where ranks may run on; None where the
    server did not answer, so that nobody asked them to stop."""

    home: str
    stopped: bool
    left: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupView:
    """What `backup` wrote. schema: revision of the tables. events: number of the newest one."""

    file: str
    database: str
    schema: str
    events: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreView:
    """What `restore` made of a backup of `made_ms`. schema: revision that the backup had. tokens_left_out: tokens of
    people, and join tokens that were not used, which it had and the home has not."""

    home: str
    database: str
    schema: str
    events: int
    rows: int
    made_ms: int
    tokens_left_out: int = 0


JOIN_TOKEN_MS: Final = (1_000, 30 * 86_400_000)
"""Shortest and longest life of a join token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTokenRequest:
    """Body of POST /agent/tokens. `lifetime_ms`: how long the token may be used for."""

    __pydantic_config__ = CLOSED

    lifetime_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTokenView:
    """A join token, told this once: the control plane keeps its SHA-256. It lets one node join, until `expires_ms`."""

    token: str
    expires_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """Body of POST /agent/join. The agent made its credential itself and sends the SHA-256: so the same request again is the same
    exchange, and no answer that holds a secret can be lost."""

    node: str
    credential_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipView:
    """Which node the caller may connect as; '' is any that no credential holds, as the home's own agent may."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GcRequest:
    """Body of POST /gc. `older_than`: a duration such as '30d', counted from when a job finished. `dry_run`: only say what would be
    collected."""

    __pydantic_config__ = CLOSED

    older_than: str = "30d"
    dry_run: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GcAmount:
    """So many things of one kind. `why`: the reason to keep them; '' of what is collected."""

    kind: str
    count: int
    size_bytes: int
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcView:
    """One garbage collection. `state` is running, done or failed. `taken` is what was, or in a dry run would be, removed; `kept`
    what was looked at and stays; `jobs` those that were collected; `problems` what could not be removed and is tried again next
    time."""

    state: str
    dry_run: bool
    older_than_ms: int
    started_ms: int
    finished_ms: int | None
    taken: tuple[GcAmount, ...]
    kept: tuple[GcAmount, ...]
    jobs: tuple[JobId, ...]
    problems: tuple[str, ...]
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactView:
    """A file that ranks of an attempt gave, as it was at `at_ms`. Its bytes are the blob of that SHA-256."""

    attempt: AttemptId
    name: str
    sha256: str
    size_bytes: int
    at_ms: int
