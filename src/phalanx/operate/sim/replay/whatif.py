"""A saved snapshot, decided under its own policy and under another one: who gains and who loses."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.core.ids import JobId
from phalanx.core.policy import Policy
from phalanx.core.policy_parse import load_policy
from phalanx.core.sim_report import MoveView, SideView, WhatIfView
from phalanx.core.units import count_of, show_duration
from phalanx.decide.scheduler import Evict, Plan, Snapshot, Start, Wait, schedule
from phalanx.decide.scheduler.snapshot import JobFacts
from phalanx.operate.sim.replay.caveats import unkept
from phalanx.operate.sim.replay.cluster import with_rules

Verdict = Literal["gains", "loses", "changes"]

BYTES_MAX: Final = 2**30
HOUR_MS: Final = 3_600_000

_SAVES: Final = "`phalanx why JOB --save-snapshot FILE` saves one"


def what_if(snapshot_file: str, policy_file: str) -> WhatIfView:
    """Raises DataError for what is no snapshot, SpecError for the policy."""
    snapshot = read_snapshot(Path(snapshot_file))
    policy = load_policy(Path(policy_file))
    own = _Side.of(snapshot, schedule(snapshot))
    other = _Side.of(snapshot, schedule(under(snapshot, policy)))
    return WhatIfView(
        snapshot=snapshot_file,
        at_ms=snapshot.now_ms,
        nodes=len(snapshot.nodes),
        devices=sum(len(node.devices) for node in snapshot.nodes),
        running=len(snapshot.running),
        pending=len(snapshot.pending),
        own=_side_view("its own", snapshot, own),
        other=_side_view(policy_file, snapshot, other),
        moves=_moves(snapshot, own, other),
        notes=tuple(unkept([node for node in with_rules(snapshot.nodes, policy) if not node.gone], policy)),
    )


def read_snapshot(file: Path) -> Snapshot:
    """As the control plane saves it. Raises DataError."""
    try:
        if file.stat().st_size > BYTES_MAX:
            raise DataError("snapshot", str(file), f"is larger than {BYTES_MAX // 2**20} MiB; {_SAVES}")
        snapshot: Snapshot = wire.loads(Snapshot, file.read_bytes())
    except OSError as error:
        raise DataError("snapshot", str(file), f"cannot be read ({error.strerror}); {_SAVES}") from None
    except ValueError:
        raise DataError("snapshot", str(file), f"is no saved snapshot of this version; {_SAVES}") from None
    return snapshot


def under(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """The same fleet and line with another policy, whose node rules are applied to what the nodes said already."""
    return replace(snapshot, policy=policy, nodes=with_rules(snapshot.nodes, policy))


@dataclass(frozen=True, slots=True)
class _Side:
    """What a plan does with each job."""

    starts: Mapping[JobId, Start]
    waits: Mapping[JobId, Wait]
    evictions: Mapping[JobId, Evict]

    @classmethod
    def of(cls, snapshot: Snapshot, plan: Plan) -> "_Side":
        return cls(
            {one.job: one for one in plan.decisions if isinstance(one, Start)},
            {one.job: one for one in plan.decisions if isinstance(one, Wait)},
            {one.job: one for one in plan.evictions},
        )

    def rank(self, job: JobId) -> int:
        """0 is best: it starts, or goes on."""
        wait = self.waits.get(job)
        if job in self.evictions:
            return 3
        if wait is None:
            return 0
        return {"making_room": 1, "never_fits": 4}.get(wait.reason.kind, 2)

    def place(self, job: JobId) -> int | None:
        """In its queue's line, from 1; None when it stands in none."""
        wait = self.waits.get(job)
        return None if wait is None else wait.position

    def sentence(self, job: JobId, now_ms: int) -> str:
        if (start := self.starts.get(job)) is not None:
            return f"starts now on {count_of(start.placement.world_size, 'device')}"
        if (evicted := self.evictions.get(job)) is not None:
            return f"is ended for {evicted.claimant} ({evicted.cause}), {evicted.lost_ms / HOUR_MS:.1f} GPU-hours lost"
        wait = self.waits.get(job)
        if wait is None:
            return "goes on"
        eta = wait.eta
        told = f"; expected in {show_duration(eta.low_ms - now_ms)} to {show_duration(eta.high_ms - now_ms)}" if eta else ""
        return wait.reason.sentence() + told


def _side_view(name: str, snapshot: Snapshot, side: _Side) -> SideView:
    held: Counter[str] = Counter()
    for running in snapshot.running:
        if running.facts.job not in side.evictions:
            held[running.facts.queue] += running.placement.world_size
        elif (keeps := side.evictions[running.facts.job].keeps) is not None:
            held[running.facts.queue] += keeps.world_size
    queue = {job.facts.job: job.facts.queue for job in snapshot.pending}
    for job, start in side.starts.items():
        held[queue[job]] += start.placement.world_size
    return SideView(
        policy=name,
        starts=len(side.starts),
        waits=len(side.waits),
        evictions=len(side.evictions),
        started_devices=sum(start.placement.world_size for start in side.starts.values()),
        lost_gpu_hours=sum(one.lost_ms for one in side.evictions.values()) / HOUR_MS,
        held=dict(sorted(held.items())),
        waits_for=dict(Counter(wait.reason.kind for wait in side.waits.values()).most_common()),
    )


def _moves(snapshot: Snapshot, own: _Side, other: _Side) -> tuple[MoveView, ...]:
    """Of jobs that fare otherwise; those that gain first."""
    facts = [job.facts for job in snapshot.pending] + [job.facts for job in snapshot.running]
    moves = [move for one in facts if (move := _move(one, own, other, snapshot.now_ms)) is not None]
    return tuple(sorted(moves, key=lambda move: (("gains", "loses", "changes").index(move.verdict), move.queue, move.job)))


def _move(facts: JobFacts, own: _Side, other: _Side, now_ms: int) -> MoveView | None:
    job = facts.job
    verdict = _verdict(job, own, other)
    if verdict is None:
        return None
    before, after = own.sentence(job, now_ms), other.sentence(job, now_ms)
    return MoveView(
        job=job,
        queue=facts.queue,
        devices=facts.shape.num_devices,
        verdict=verdict,
        before=before,
        after=after,
        place_before=own.place(job),
        place_after=other.place(job),
    )


def _verdict(job: JobId, own: _Side, other: _Side) -> Verdict | None:
    before, after = own.rank(job), other.rank(job)
    if before != after:
        return "gains" if after < before else "loses"
    first, second = own.waits.get(job), other.waits.get(job)
    if first is None or second is None:
        return None
    was, is_ = own.place(job), other.place(job)
    if was is not None and is_ is not None and was != is_:
        return "gains" if is_ < was else "loses"
    return "changes" if first.reason.kind != second.reason.kind else None
