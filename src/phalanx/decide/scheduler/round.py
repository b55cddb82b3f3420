"""One decision under way: what every step reads and changes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.core.devices import Placement
from phalanx.core.ids import JobId
from phalanx.core.reasons import NeverFits, NoNodes
from phalanx.decide.scheduler.known import Known
from phalanx.decide.scheduler.line.by_service import ServiceOrder, Turns
from phalanx.decide.scheduler.line.sweeps import Batch, Sweeps, alone
from phalanx.decide.scheduler.memory import Memory
from phalanx.decide.scheduler.plan import Claim, Evict
from phalanx.decide.scheduler.quotas.fair import Ask
from phalanx.decide.scheduler.quotas.share import Tree
from phalanx.decide.scheduler.refusals import Refusals
from phalanx.decide.scheduler.room import claims
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.room.kept import Kept
from phalanx.decide.scheduler.room.victims import Victims
from phalanx.decide.scheduler.snapshot import NodeFacts, RunningJob, Shape, Snapshot
from phalanx.decide.scheduler.told import Told
from phalanx.decide.scheduler.where.eligible import eligible_types
from phalanx.decide.scheduler.where.fleet import Fleet
from phalanx.decide.scheduler.where.packing import Packing
from phalanx.decide.scheduler.why.explain import never_fits


@dataclass(slots=True)
class Round:
    """fleet: what is free. tree: who holds how much. kept: for whom what is kept. known: what was found out already. running: gangs
    by job; gangs: as columns. no_nodes: why nothing starts at all, if so. sweeps: how the line is cut; told: what jobs in it heard
    before; refusals: what queues may not have. promised: what of its claim is held for a job. holders: gangs that hold the rest.
    waiting: jobs by queue that were put in line. service, turns: where the order shares devices in time. packing: where jobs on one
    node lie, if the policy says so."""

    snapshot: Snapshot
    fleet: Fleet
    tree: Tree
    kept: Kept
    known: Known
    running: dict[JobId, RunningJob]
    gangs: Gangs
    no_nodes: NoNodes | None
    sweeps: Sweeps
    told: Told
    refusals: Refusals
    promised: dict[JobId, Placement] = field(default_factory=dict)
    holders: dict[JobId, list[RunningJob]] = field(default_factory=dict)
    evictions: list[Evict] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    waiting: Counter[str] = field(default_factory=Counter)
    service: ServiceOrder | None = None
    turns: Turns = field(default_factory=Turns)
    packing: Packing | None = None
    _victims: Victims | None = None

    @property
    def victims(self) -> Victims:
        """Looked at when somebody is to make room for the first time."""
        if self._victims is None:
            self._victims = Victims(self.snapshot, self.fleet, self.tree, self.kept, self.gangs, self.asks)
            if self.kept.homes is not None:
                self._victims.guard(self.kept.homes.guaranteed)
        return self._victims

    @classmethod
    def of(cls, snapshot: Snapshot, memory: Memory) -> "Round":
        fleet = memory.fleet(snapshot)
        ground = fleet.ground
        nobody = None if ground.schedulable.any() else _no_nodes(ground.nodes)
        gangs = memory.gangs(snapshot, ground)
        known = Known(snapshot.policy, snapshot.now_ms, memory.shapes)
        running = dict(zip(gangs.jobs, gangs.all, strict=True))
        tree, kept = Tree(snapshot, ground, memory.holds.of(gangs, ground)), Kept(snapshot, fleet, gangs)
        round_ = cls(snapshot, fleet, tree, kept, known, running, gangs, nobody, memory.sweeps, memory.told, memory.refusals)
        if snapshot.policy.packing == "expected_idle":
            round_.packing = memory.packing.of(snapshot, fleet)
        memory.told.begin()
        memory.refusals.begin(snapshot.policy, ground.seen)
        round_._hold_claims()
        return round_

    def _hold_claims(self) -> None:
        """Before anybody is considered. Claims never overlap; if they did, the job whose name comes first would have it."""
        claimed = self.snapshot.claimants
        self.holders = claims.holders(claimed, self.gangs, self.fleet.ground)
        for job in sorted(claimed, key=lambda job: job.facts.job):
            assert job.claim is not None
            facts = job.facts
            self.promised[facts.job] = self.fleet.hold(facts.shape, job.claim)
            self.kept.promised(job, job.claim, self.holders[facts.job])
            self.tree.use(facts, self.kept.kind_of(job.claim) or "", job.claim.world_size)
        self.kept.stand()

    def follow(self) -> bool:
        """Whether anything has changed since the last call: what jobs alike were told may be untrue now, and is forgotten."""
        state = (self.fleet.version, self.tree.version, len(self.kept.reservations), len(self.evictions), len(self.claims))
        if state == self.known.state:  # asked for every job
            return False
        self.known.follow(self.fleet, state)
        return True

    def asks(self) -> Mapping[Ask, int]:
        """How often each is asked for by all jobs that wait."""
        return self.sweeps.asked(self.snapshot, self.known.number)

    def batches(self) -> list[Batch]:
        """Jobs that are considered one after the other: all without a claim that do not start at home."""
        homes = self.kept.homes
        if homes is None:
            return self.sweeps.batches(self.snapshot, self.known.number)
        return list(alone(job for job in self.snapshot.pending if job.claim is None and job.facts.job not in homes.of))

    def eligible(self, shape: Shape) -> tuple[str, ...]:
        """Types on which it could ever run."""
        number, known = self.known.number(shape), self.fleet.ground.seen.kinds
        if number not in known:
            known[number] = eligible_types(shape, self.fleet)
        return known[number]

    def never_fits(self, shape: Shape) -> NeverFits | None:
        number, known = self.known.number(shape), self.fleet.ground.seen.impossible
        if number not in known:
            known[number] = never_fits(shape, self.fleet)
        return known[number]


def _no_nodes(nodes: Sequence[NodeFacts]) -> NoNodes:
    exposed = sum(node.exposed for node in nodes)
    return NoNodes(len(nodes), sum(node.drained for node in nodes) - exposed, exposed)
