"""The job spec: what a user writes in YAML or builds in Python, same fields. `parse_spec` is the way in for untrusted data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pydantic import ConfigDict

from phalanx.core.devices import DeviceRequest, parse_devices
from phalanx.core.policy import Tier
from phalanx.core.timeouts import HANG_MS
from phalanx.core.training_data import DataSource
from phalanx.core.units import duration_ms, moment_ms, size_bytes

Kind = Literal["batch", "train", "service", "interactive", "shell", "notebook"]
Session = Literal["", "shell", "notebook"]
OnPartition = Literal["keep", "stop"]
BestMode = Literal["min", "max"]
Occasion = Literal["started", "restarted", "waiting", "paused", "finished", "idle"]
SpotUse = Literal["never", "allow", "prefer"]
ContextKind = Literal["ring", "ulysses"]
ScheduleName = Literal["gpipe", "1f1b", "bfs", "interleaved", "zb1p", "zbv", "dualpipev"]
Zero = Literal[0, 1, 2, 3]

Scalar = str | int | float | bool
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Wanted on each node.

    gpus: 'H100:8', 'H100|A100-80:8' for the first of several types that has room, or '2' for two devices of any type; one rank runs
        on each. '0.25' is a quarter of one device, shared with others.
    gpu_memory: of the device's memory, the most that a share may use; '0' is its part of it.
    cpus: CPU cores; 0 asks for none in particular.
    memory: host memory such as '16GiB'; '0' asks for none in particular.
    """

    __pydantic_config__ = _STRICT

    gpus: str = "1"
    cpus: float = 0.0
    memory: str = "0"
    gpu_memory: str = "0"

    @property
    def devices(self) -> DeviceRequest:
        return replace(parse_devices(self.gpus), memory_bytes=size_bytes(self.gpu_memory))

    @property
    def memory_bytes(self) -> int:
        return size_bytes(self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Where the gang may lie. Tiers are labels of nodes in the policy: domain (NVLink), rack, block.

    within: all of it in one of that tier; '' anywhere, as near together as there is room.
    group: each so many nodes, in rank order, lie in one `group_within`, as tensor-parallel ranks need; 0 makes no groups.
    where: labels that every node must have.
    spot: `never` runs on nodes that may be taken away, `allow` where they come first or are cheaper, `prefer` waits for them a
    while.
    regions: those in which the job may run at all, by law or contract; a platform elsewhere, or that says no region, refuses it.
    data: bytes that it reads, by the region in which they lie, such as '2TB': what a way to another cluster costs.
    """

    __pydantic_config__ = _STRICT

    within: Tier | Literal[""] = ""
    group: int = 0
    group_within: Tier = "domain"
    where: Mapping[str, str] = field(default_factory=dict)
    spot: SpotUse = "never"
    regions: tuple[str, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def data_bytes(self) -> dict[str, int]:
        return {region: size_bytes(size) for region, size in self.data.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """The job is one of `count` alike; each finds its number, from 0, in PHALANX_ARRAY_INDEX. parallel: of them at once; 0 is
    all."""

    __pydantic_config__ = _STRICT

    count: int
    parallel: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What runs the ranks; at most one of the three. Empty means the platform's own Python.

    python: path of an interpreter on the node.
    lock: file in `workdir`: `uv.lock`, or a requirements file; built once per node by uv, and kept by its content.
    image: container image, run by podman, apptainer or enroot, whichever the node has.
    """

    __pydantic_config__ = _STRICT

    python: str = ""
    lock: str = ""
    image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Who is told of the job's way.

    webhook: http(s) URL that gets a POST of JSON.
    on: which of started, restarted, waiting, paused, finished are told.
    secret: name of the stored secret that signs them (HMAC-SHA256 over timestamp and body); empty signs nothing.
    """

    __pydantic_config__ = _STRICT

    webhook: str
    on: tuple[Occasion, ...] = ("finished",)
    secret: str = ""


IDLE_MS: Final = 30 * 60 * 1000
"""After so long without a sign of work a session ends, where its job does not say."""

CHECKPOINT_STEPS: Final = 100
"""Between saves, of a job that does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """When to save, where, and what to keep. Plain scripts read it from PHALANX_CHECKPOINT_EVERY, _KEEP_LAST and so on, and where
    from PHALANX_CHECKPOINTS.

    every: optimiser steps between saves; 0 saves only at the end, `auto` as often as pays, which a recipe measures.
    keep_last: newest checkpoints kept.
    keep_best: of all checkpoints, so many with the best `best_metric` are kept too.
    best_metric: a number that the run measures at its saves, such as val_loss.
    best_mode: whether the least or the most of it is best.
    keep_every: checkpoints whose step is a multiple of it are kept too; 0 keeps none.
    store: an object store or a folder, below which the job saves in a folder of its own; `folder` is the job's folder. '' is what
        the policy says, and else the job's folder.
    """

    __pydantic_config__ = _STRICT

    every: int | Literal["auto"] = CHECKPOINT_STEPS
    keep_last: int = 2
    keep_best: int = 0
    best_metric: str = ""
    best_mode: BestMode = "min"
    keep_every: int = 0
    store: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What becomes of the other ranks when one dies or hangs. See docs/recovery.md.

    in_gang: they keep their processes, and another process takes the dead one's place; for recipes, and scripts that train through
        `phalanx.job.train.reform`. Else the whole gang starts again.
    spares: processes that wait, imports done, to take a place; each has its share of host memory and no device. With 0 one is
        started when it is needed.
    hang_timeout: how long a rank may make no progress, such as '2m', before it is killed and replaced; longer than the longest
        step. Empty is 10 minutes.
    min_ranks: as few ranks will do when no process can take a dead one's place soon; the gang grows later. They share each step's
        samples evenly among them, so their number divides the microbatches of a step. 0 is all ranks of the gang.
    replicas: 1 also keeps each rank's newest states in the host memory of another node, or of the next rank on one node, so that a
        node that is lost with all its memory costs some steps and not all since the last checkpoint.
    """

    __pydantic_config__ = _STRICT

    in_gang: bool = False
    spares: int = 1
    hang_timeout: str = ""
    min_ranks: int = 0
    replicas: int = 0

    @property
    def hang_ms(self) -> int:
        """Raises ValueError naming the accepted units."""
        return duration_ms(self.hang_timeout) if self.hang_timeout else HANG_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSpec:
    """How a recipe's model and samples are laid over the ranks. See docs/layouts.md. Data parallelism has the ranks that the other
    axes leave: each of its ranks, or groups of ranks, reads samples of its own.

    pp: ranks of the pipeline, each with its part of the layers, through which a step's microbatches go (`accumulate`). schedule: in
        which order. stages_per_rank: parts of the layers that each has; 0 for as few as the schedule does with.
    cp: ranks that share a sequence (context parallel). context: how they do: `ring` sends keys and values round, `ulysses` has each
        attend with some of the heads.
    tp: ranks that share each matrix, and between matrices the sequence (tensor, sequence and loss parallel).
    ep: ranks that share the experts of a layer, of those that share the state; ranks of cp and tp are among these.
    zero: what data-parallel ranks share instead of each holding it: 0 nothing (DDP), 1 the optimiser's state, 2 gradients too, 3
        weights too (FSDP).
    replicate: groups of data-parallel ranks, each of which holds all that `zero` shares between its ranks (HSDP).
    """

    __pydantic_config__ = _STRICT

    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    zero: Zero = 3
    replicate: int = 1
    context: ContextKind = "ring"
    schedule: ScheduleName = "1f1b"
    stages_per_rank: int = 0

    @property
    def ranks_per_sample(self) -> int:
        """That get the same samples."""
        return self.pp * self.cp * self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSpec:
    """Steps that every rank traces, for recipes and scripts that use `phalanx.run()`. See docs/profile.md.

    first: the first of them, counted from 1. count: how many on end.
    """

    __pydantic_config__ = _STRICT

    first: int
    count: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job.

    name: a DNS label; the job's id is this and a number.
    project: groups runs and owns the model versions that jobs produce.
    team: whose job it is, and who may see it. '' is the only team of whoever submits, or the platform's own when its admin does.
    kind: `train` is measured by its step records, `batch` is not, `service` is restarted whenever it ends, `interactive` never; nor
        are `shell`, a terminal that people attach to, and `notebook`, a Jupyter server.
    entrypoint: command line of every rank, as a list or one shell-like string; or else
    recipe: a built-in trainer, configured by `hyperparameters`.
    workdir: folder packed at submit, laid anew for each attempt where ranks start; what they write there stays for the next.
    environment: what runs the ranks.
    env: environment variables of the ranks; stored and shown with the job, so not for secrets.
    secrets: names of stored secrets, each given to the ranks as an environment variable of that name; never shown.
    secret_files: names of stored secrets, each given as a file in memory that only the job may read; NAME_FILE says where.
    num_nodes: nodes of the gang.
    min_nodes: as few will do when no more are free; it grows later. 0 is `num_nodes`.
    resources: wanted on each node.
    placing: where the gang may lie.
    queue: the line the job is counted in, with its share, quota, limit and budget in the policy.
    priority: 0 to 100, higher first.
    preemptible: may be ended, after a checkpoint, for others that go before it; one that may not be stays within its queue's quota.
    deadline: when it should be done: a UTC time such as '2026-12-01T09:00Z', or a duration after its submission such as '12h'.
    window: name of the policy's times in which it may start, such as off-peak hours.
    after: ids of jobs that must have succeeded before it starts.
    array: makes several jobs of this one.
    max_restarts: attempts after the first before the job counts as failed.
    max_duration: limit of one attempt such as '2h'; empty for none.
    idle_timeout: of a shell or notebook: it is stopped after so long without a sign of work; '0' never, empty is 30 minutes.
    on_partition: what ranks do on a node that cannot reach the control plane and cannot tell whether others can: `keep` on, or
        `stop` once the node's lease is over. The commits of ranks that were given up are refused either way.
    notify: who is told of the job's way.
    checkpoint: when to save, and what to keep.
    recovery: what becomes of the other ranks when one dies or hangs.
    layout: how a recipe's model and samples are laid over the ranks.
    profile: steps that every rank traces.
    chaos: faults may be planned for it with `phalanx chaos`.
    hyperparameters: of the recipe, or read by a script from PHALANX_HYPERPARAMETERS (JSON); tracked as parameters.
    data: token shards for the recipe, one data set or a mixture; their manifest hash goes into the lineage.
    """

    __pydantic_config__ = _STRICT

    name: str
    project: str = "default"
    team: str = ""
    kind: Kind = "batch"
    entrypoint: str | tuple[str, ...] = ()
    recipe: str = ""
    workdir: str = ""
    environment: Environment = field(default_factory=Environment)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    secret_files: tuple[str, ...] = ()
    num_nodes: int = 1
    min_nodes: int = 0
    resources: Resources = field(default_factory=Resources)
    placing: Placing = field(default_factory=Placing)
    queue: str = "default"
    priority: int = 50
    preemptible: bool = True
    deadline: str = ""
    window: str = ""
    after: tuple[str, ...] = ()
    array: Array | None = None
    max_restarts: int = 3
    max_duration: str = ""
    idle_timeout: str = ""
    on_partition: OnPartition = "keep"
    notify: Notify | None = None
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    recovery: Recovery = field(default_factory=Recovery)
    layout: LayoutSpec = field(default_factory=LayoutSpec)
    profile: ProfileSpec | None = None
    chaos: bool = False
    hyperparameters: Mapping[str, Scalar] = field(default_factory=dict)
    data: DataSource | None = None

    @property
    def all_secrets(self) -> tuple[str, ...]:
        """In whichever form the ranks are given them."""
        return tuple(dict.fromkeys((*self.secrets, *self.secret_files)))

    @property
    def num_ranks(self) -> int:
        """Of the whole gang: one on each device."""
        return self.num_nodes * self.resources.devices.count

    @property
    def session(self) -> Session:
        """What somebody works in; '' of other jobs."""
        return self.kind if self.kind in ("shell", "notebook") else ""

    @property
    def num_data_ranks(self) -> int:
        """Parts into which the samples of a step are cut: ranks, or groups of ranks that share theirs."""
        return max(1, self.num_ranks // self.layout.ranks_per_sample)

    @property
    def max_duration_ms(self) -> int | None:
        return duration_ms(self.max_duration) if self.max_duration else None

    @property
    def idle_timeout_ms(self) -> int:
        """0 is never. Raises ValueError saying the accepted forms."""
        if not self.session or self.idle_timeout == "0":
            return 0
        return duration_ms(self.idle_timeout) if self.idle_timeout else IDLE_MS

    def deadline_ms(self, submitted_ms: int) -> int | None:
        """Unix time. Raises ValueError saying the accepted forms."""
        return moment_ms(self.deadline, submitted_ms) if self.deadline else None
