"""A rank's side of the platform: what it was given, and what it has to say.

Outside Phalanx every property has its default and nothing is said, so a script written for Phalanx also runs alone.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from phalanx.core.chaos import FOLDER, KINDS, OF_TRAINER, FaultMet, PlannedFault
from phalanx.core.chaos import FaultKind as PlannedKind
from phalanx.core.checkpoints import CHECKPOINTS
from phalanx.core.errors import StoreUnavailable, UserError
from phalanx.core.health import REASON_CHARS_MAX, Corruption, DamagedData, LossSpike, LostEvidence, ReadTrouble, SaveTrouble
from phalanx.core.ids import AttemptId, split_attempt
from phalanx.core.records import CheckpointCommitted, Metric, ModelSaved, Recovered, Resumed, StepRecord
from phalanx.core.spec import CHECKPOINT_STEPS, BestMode, CheckpointPolicy, LayoutSpec, ProfileSpec, Scalar
from phalanx.core.spec_layout import LAYOUT_VARIABLE, PLAIN, layout_of
from phalanx.core.spec_profile import PROFILE_VARIABLE, profile_of
from phalanx.core.trace_request import REQUESTS_VARIABLE, TraceMissed
from phalanx.core.training_data import DATA_SPEC_VARIABLE, DATA_VARIABLE, DataSource, data_of
from phalanx.job.sdk.chaos import Chaos
from phalanx.job.sdk.fault import MET, Fault, meet, parse_fault
from phalanx.job.sdk.fault import Kind as FaultKind
from phalanx.job.sdk.journal import Bell, Journal, Record
from phalanx.job.sdk.requests import Requests

_POLICY: Final = CheckpointPolicy()
_PATIENCE_S: Final = 600
_AFTER_RECORDS: Final = tuple(kind for kind in KINDS if kind not in OF_TRAINER)
MODEL_TRIES: Final = 20
MODEL_PAUSE_S: Final = 0.5
"""A finished model is worth ten seconds of waiting for a disk; nothing else is worth any."""


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One rank of one attempt, from `attach`.

    job, attempt: their ids, '' outside Phalanx. job_dir: the job's durable folder, shared by its attempts. checkpoints: the folder,
    or URL in an object store, for its checkpoints; '' is the folder `checkpoints` in `job_dir`. data: the prepared
    folder of the job's data source, or ''. data_source: all that the job's `data` says, or None. code: SHA-256 of the packed
    workdir, or ''. artifacts_dir: files that are put there are kept by the platform, see docs/artifacts.md; the current folder
    outside Phalanx. node: by which ranks of one machine know each other: its name in the platform, else its number in torchrun's
    group, else ''; machines may share a host name. keepers_dir: of this attempt on this node,
    where ranks meet the processes that hold their snapshots; '' outside Phalanx. replicas: how many other places hold each
    snapshot of a gang that recovers inside. layout: how the job's recipe is to be laid over its ranks. profile: steps that the job
    wants traced. checkpoint_patience_s: how
    long a save is tried again where it cannot be written. checkpoint_mtbf_s: mean seconds between failures of this gang, for
    saves as often as pays; 0 where saves are every `checkpoint_every` steps. fault: that was planned with the job. chaos: those
    planned while it runs. requests: what else is asked of it then.
    """

    job: str = ""
    attempt: str = ""
    rank: int = 0
    world_size: int = 1
    job_dir: str = "."
    hyperparameters: Mapping[str, Scalar] = field(default_factory=dict)
    checkpoint_every: int = CHECKPOINT_STEPS
    checkpoint_keep_last: int = _POLICY.keep_last
    checkpoint_keep_best: int = _POLICY.keep_best
    checkpoint_best_metric: str = _POLICY.best_metric
    checkpoint_best_mode: BestMode = _POLICY.best_mode
    checkpoint_keep_every: int = _POLICY.keep_every
    data: str = ""
    data_source: DataSource | None = None
    code: str = ""
    artifacts_dir: str = "."
    local_rank: int = 0
    node: str = ""
    keepers_dir: str = ""
    replicas: int = 0
    layout: LayoutSpec = PLAIN
    profile: ProfileSpec | None = None
    checkpoint_patience_s: int = _PATIENCE_S
    checkpoint_mtbf_s: int = 0
    checkpoints: str = ""
    journal: Journal | None = None
    fault: Fault | None = None
    chaos: Chaos | None = None
    requests: Requests | None = None
    unix_ms: Callable[[], int] = _unix_ms
    meet: Callable[[FaultKind], None] = meet
    pause: Callable[[float], None] = time.sleep

    def step(self, record: StepRecord) -> None:
        """Says that an optimiser step is done, before the next one starts."""
        self._say(record)
        fault = self.planned(*MET)
        if fault is not None and fault.step == record.step:
            self.meet(fault.kind)
        for due in self.due(record.step, *_AFTER_RECORDS):
            self._meet(due)

    def due(self, step: int, *kinds: PlannedKind) -> list[PlannedFault]:
        """The faults of these kinds that somebody planned for this rank at this step, or at its next one. Each is said, and given
        once; what was heard of too late is said as well."""
        if self.chaos is None:
            return []
        claimed = self.chaos.claimed(self.rank, step, kinds)
        for fault, late in claimed:
            self._say(FaultMet(
                rank=self.rank, step=step, number=fault.number, fault=fault.fault, late=late, at_ms=self.unix_ms()
            ))  # fmt: skip
        return [fault for fault, late in claimed if not late]

    def _meet(self, fault: PlannedFault) -> None:
        """What befalls agent and store only begins here, and is done by those."""
        match fault.fault:
            case "kill-rank":
                self.meet("sigkill")
            case "hang-rank" if fault.for_ms:
                self.pause(fault.for_ms / 1000)
            case "hang-rank":
                self.meet("hang")

    def planned(self, *kinds: FaultKind) -> Fault | None:
        """The fault of one of these kinds that was planned for this rank in this attempt."""
        fault = self.fault
        if fault is None or not self.attempt or fault.kind not in kinds or fault.rank != self.rank:
            return None
        return fault if split_attempt(AttemptId(self.attempt))[1] == fault.attempt else None

    def metric(self, *, name: str, value: float, step: int) -> None:
        """Says a value that not every step has, such as a held-out loss."""
        self._say(Metric(rank=self.rank, step=step, name=name, value=value, at_ms=self.unix_ms()))

    def spike(self, spike: LossSpike) -> None:
        """Says that a step was not trained on, and why."""
        self._say(spike)

    def corruption(self, found: Corruption) -> None:
        """Says that bits are not what they have to be."""
        self._say(found)

    def damaged(self, *, step: int, source: str, shard: str, blocks: tuple[int, ...], samples: int) -> None:
        """Says that blocks of a shard were set aside as of `step`, and how many samples other ones stand in for."""
        self._say(DamagedData(
            rank=self.rank, step=step, source=source, shard=shard, blocks=blocks, samples=samples, at_ms=self.unix_ms(),
        ))  # fmt: skip

    def not_recorded(self, *, step: int, reason: str) -> None:
        """Says that from `step` on what this rank is given cannot be recorded."""
        self._say(LostEvidence(rank=self.rank, step=step, reason=reason[:REASON_CHARS_MAX], at_ms=self.unix_ms()))

    def no_trace(self, *, step: int, number: int, why: str) -> None:
        """Says, after `step`, that this rank leaves no trace for the request of that number."""
        self._say(TraceMissed(rank=self.rank, step=step, number=number, why=why[:REASON_CHARS_MAX], at_ms=self.unix_ms()))

    @property
    def checkpoints_at(self) -> str:
        """The folder or URL for the job's checkpoints."""
        return self.checkpoints or f"{self.job_dir}/{CHECKPOINTS}"

    def trouble(self, *, step: int, reason: str, lost: bool) -> None:
        """Says that the checkpoint of `step` could not be written yet, or is `lost`."""
        self._say(SaveTrouble(rank=self.rank, step=step, lost=lost, reason=reason[:REASON_CHARS_MAX], at_ms=self.unix_ms()))

    def waits_for_checkpoints(self, *, reason: str, wait_s: float) -> None:
        """Says that the job's checkpoints cannot be read yet, and for how long they are asked for."""
        reason = reason[:REASON_CHARS_MAX]
        self._say(ReadTrouble(rank=self.rank, wait_s=round(wait_s), reason=reason, at_ms=self.unix_ms()))

    def resumed(self, *, step: int, checkpoint: str, skipped: tuple[str, ...] = ()) -> None:
        """Says that this attempt goes on after `step`; `skipped` names damaged newer checkpoints."""
        self._say(Resumed(rank=self.rank, step=step, checkpoint=checkpoint, skipped=skipped, at_ms=self.unix_ms()))

    def recovered(
        self, *, step: int, generation: int, why: str, replaced: Mapping[int, int], steps_lost: int, recovery_ms: int,
        absent: tuple[int, ...] = (), planned: bool = False,
    ) -> None:  # fmt: skip
        """Says that the gang goes on after `step` in a new generation. replaced: rank -> pid. See core.records.Recovered."""
        ranks = tuple(sorted(replaced))
        self._say(Recovered(
            rank=self.rank, step=step, generation=generation, why=why, replaced=ranks, pids=tuple(replaced[rank] for rank in ranks),
            steps_lost=steps_lost, recovery_ms=recovery_ms, absent=absent, planned=planned, at_ms=self.unix_ms(),
        ))  # fmt: skip

    def checkpoint(self, *, step: int, path: str, digest: str, size_bytes: int) -> None:
        """Says that a checkpoint's manifest is durable; `digest` is the manifest's SHA-256. Said again later if it has to be."""
        self._say(
            CheckpointCommitted(rank=self.rank, step=step, path=path, digest=digest, size_bytes=size_bytes, at_ms=self.unix_ms())
        )

    def model(self, *, step: int, path: str, weights_digest: str, metrics: Mapping[str, float], lineage: Mapping[str, str]) -> None:
        """Says that a finished model lies in the folder `path`; the platform registers it as a version.

        Raises StoreUnavailable when the record cannot be written for ten seconds: a model that nobody hears of is lost.
        """
        if self.journal is None:
            return
        record = ModelSaved(
            rank=self.rank,
            step=step,
            path=path,
            weights_digest=weights_digest,
            metrics=metrics,
            lineage=lineage,
            at_ms=self.unix_ms(),
        )
        written, tries = self.journal.write(record), 1
        while not written and tries < MODEL_TRIES:
            self.pause(MODEL_PAUSE_S)
            written, tries = self.journal.write_owed(), tries + 1
        if not written:
            raise StoreUnavailable(f"{path}: the model is saved, but its record could not be written; free space or try again")

    @property
    def lost_records(self) -> int:
        """Records that the disk did not take."""
        return self.journal.lost if self.journal is not None else 0

    def _say(self, record: Record) -> None:
        if self.journal is not None:
            self.journal.write(record)


def attach(environ: Mapping[str, str] | None = None, clock_s: Callable[[], float] = time.monotonic) -> Session:
    """This rank's session by the environment (`os.environ` when None). Raises UserError for a variable that makes no sense."""
    env = os.environ if environ is None else environ
    rank = _whole(env, "RANK", 0)
    records = env.get("PHALANX_RECORDS", "")
    return Session(
        job=env.get("PHALANX_JOB", ""),
        attempt=env.get("PHALANX_ATTEMPT", ""),
        rank=rank,
        world_size=_whole(env, "WORLD_SIZE", 1),
        job_dir=env.get("PHALANX_JOB_DIR", "") or ".",
        hyperparameters=_hyperparameters(env.get("PHALANX_HYPERPARAMETERS", "")),
        checkpoint_every=_whole(env, "PHALANX_CHECKPOINT_EVERY", CHECKPOINT_STEPS),
        checkpoint_keep_last=_whole(env, "PHALANX_CHECKPOINT_KEEP_LAST", _POLICY.keep_last),
        checkpoint_keep_best=_whole(env, "PHALANX_CHECKPOINT_KEEP_BEST", _POLICY.keep_best),
        checkpoint_best_metric=env.get("PHALANX_CHECKPOINT_BEST_METRIC", _POLICY.best_metric),
        checkpoint_best_mode=_mode(env.get("PHALANX_CHECKPOINT_BEST_MODE", "")),
        checkpoint_keep_every=_whole(env, "PHALANX_CHECKPOINT_KEEP_EVERY", _POLICY.keep_every),
        data=env.get(DATA_VARIABLE, ""),
        data_source=_data_source(env),
        code=env.get("PHALANX_CODE", ""),
        artifacts_dir=env.get("PHALANX_ARTIFACTS", "") or ".",
        local_rank=_whole(env, "LOCAL_RANK", 0),
        node=env.get("PHALANX_NODE", "") or env.get("GROUP_RANK", ""),
        keepers_dir=env.get("PHALANX_KEEPERS", ""),
        checkpoints=env.get("PHALANX_CHECKPOINTS", ""),
        replicas=_whole(env, "PHALANX_REPLICAS", 0),
        layout=_layout(env),
        profile=_profile(env),
        checkpoint_mtbf_s=_whole(env, "PHALANX_CHECKPOINT_MTBF_S", 0),
        checkpoint_patience_s=_whole(env, "PHALANX_CHECKPOINT_PATIENCE_S", _PATIENCE_S),
        journal=Journal(Path(records), Bell(env.get("PHALANX_SOCKET", ""), rank, clock_s)) if records else None,
        fault=parse_fault(env.get("PHALANX_FAULT", "")),
        chaos=Chaos(Path(env[FOLDER])) if env.get(FOLDER) else None,
        requests=Requests(Path(env[REQUESTS_VARIABLE])) if env.get(REQUESTS_VARIABLE) else None,
    )


def _whole(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise UserError(name, text, "write a whole number, 0 or more")
    return int(text)


def _data_source(env: Mapping[str, str]) -> DataSource | None:
    try:
        return data_of(env)
    except ValueError as error:
        raise UserError(DATA_SPEC_VARIABLE, env.get(DATA_SPEC_VARIABLE, ""), f"write a job's data as JSON ({error})") from error


def _layout(env: Mapping[str, str]) -> LayoutSpec:
    try:
        return layout_of(env)
    except ValueError as error:
        raise UserError(LAYOUT_VARIABLE, env[LAYOUT_VARIABLE], f"write a job's layout as JSON ({error})") from error


def _profile(env: Mapping[str, str]) -> ProfileSpec | None:
    try:
        return profile_of(env)
    except ValueError as error:
        raise UserError(PROFILE_VARIABLE, env[PROFILE_VARIABLE], f"write a job's profile as JSON ({error})") from error


def _mode(text: str) -> BestMode:
    if text not in ("", "min", "max"):
        raise UserError("PHALANX_CHECKPOINT_BEST_MODE", text, "write min or max")
    return "max" if text == "max" else "min"


def _hyperparameters(text: str) -> Mapping[str, Scalar]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str | int | float | bool) for value in found.values()):
        raise UserError("PHALANX_HYPERPARAMETERS", text, "write a JSON object of strings, numbers and booleans")
    return found
