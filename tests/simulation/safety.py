"""What must hold at every step, whatever goes wrong: held against the physical truth of the machines and against the log itself."""

from collections import Counter
from random import Random
from typing import Final

from phalanx.core import wire
from phalanx.core.devices import WHOLE, Placement
from phalanx.core.errors import StoreUnavailable
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    DevicesClaimed,
    Event,
    EventBody,
    JobEvicted,
    JobRetried,
    JobSubmitted,
    ModelRegistered,
    NodeUp,
    PartLost,
    PartReleased,
    StopRequested,
)
from phalanx.core.features import needed
from phalanx.core.ids import AttemptId, JobId, NodeId, split_attempt
from phalanx.core.messages import Forget, GangStarted, GiveUpNode, StartRanks, StopRanks
from phalanx.core.records import StepRecord
from phalanx.core.spec import JobSpec
from phalanx.core.states import Finished, Running, Starting, Stopping
from phalanx.operate.control.fold import fold_all
from phalanx.operate.control.world import World, slice_of
from phalanx.operate.sim.cluster import Cluster, Watcher, is_superseded
from phalanx.operate.sim.control import SimServer
from phalanx.operate.sim.faults import Crash
from phalanx.operate.sim.machine import Machine
from phalanx.record.telemetry.ledger import account

TABLES_EVERY: Final = 15
LEDGER_EVERY: Final = 60
"""Completed ticks between two looks that take longer."""

MARGIN_MS: Final = 1_000

ZOMBIE: Final = "ranks of an attempt that was given up live on"
RANK_BESIDE_ZOMBIE: Final = "a rank starts beside some that were given up"
STOPPED_IN_TIME: Final = "ranks that were to stop with their lease are gone when they are given up"
ON_ITS_CLAIM: Final = "a gang starts on what others were ended for"
BESIDE_ANOTHER: Final = "a rank starts on a device that it shares"
SMALLER: Final = "a gang starts on fewer nodes than it may have"
SUPERSEDED: Final = "a control plane ends that was superseded"


class Violated(BaseException):
    """A promise is broken. `name` is the property; no handler of the code under test may stop it."""

    def __init__(self, name: str, what: str) -> None:
        self.name = name
        super().__init__(f"{name}: {what}")


class Watch(Watcher):
    """Sees everything that happens in a cluster, and raises Violated at the first thing that must not.

    history: what happened, for people; None keeps nothing. `seen`: how often, so that a look that nothing ever reaches is noticed.
    """

    def __init__(self, history: list[tuple[int, str, str, object]] | None = None) -> None:
        self.world = World()
        self.log: list[Event] = []
        self.seen: Counter[str] = Counter()
        self._cluster: Cluster | None = None
        self._history = history
        self._epoch = 0
        self._leaders: dict[int, int] = {}
        self._obeyed: dict[NodeId, int] = {}
        self._promised: dict[JobId, JobSpec] = {}
        self._keys: dict[str, JobId] = {}
        self._asked: Counter[str] = Counter()
        self._ranks: set[tuple[AttemptId, int]] = set()
        self._wiped: set[NodeId] = set()
        self._ended: set[AttemptId] = set()
        self._used_up: Counter[JobId] = Counter()
        self._claims: dict[JobId, Placement] = {}
        self._ticks = 0

    def watch(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "it watches nothing yet"
        return self._cluster

    def note(self, who: str, what: str, about: object = "") -> None:
        self.seen[what] += 1
        if self._history is not None:
            self._history.append((self._cluster.timeline.now_ms if self._cluster else 0, who, what, about))

    def machine(self, node: NodeId) -> Machine:
        return next(one.machine for one in self.cluster.nodes if one.machine.node == node)

    def honest(self, node: NodeId) -> bool:
        return self.cluster.liar is None or self.cluster.liar.node != node

    # Machines

    def _milli(self, attempt: AttemptId, node: NodeId) -> int:
        """Thousandths of each of its devices that an attempt asked for; all of them of one that nobody placed."""
        record = self.world.attempts.get(attempt)
        return self.world.jobs[record.job].spec.resources.devices.milli if record else WHOLE

    def rank_started(self, machine: Machine, attempt: AttemptId, rank: int, device: int) -> None:
        self.note(f"machine {machine.node}", f"rank {rank} starts on device {device}", attempt)
        if machine is self.cluster.liar:
            return
        self.seen[RANK_BESIDE_ZOMBIE] += any(other in self._ended for other, _ in machine.living)
        others = sorted(machine.on_device(device) - {attempt})
        own, theirs = self._milli(attempt, machine.node), [self._milli(other, machine.node) for other in others]
        shared = all(milli < WHOLE for milli in (own, *theirs))
        what = f"device {device} of {machine.node} runs {others}, and now {attempt}"
        _hold("one_attempt_per_device", shared or not others, what)
        _hold("shares_fit", not others or own + sum(theirs) <= WHOLE, f"{what}: {theirs} and {own} thousandths of it")
        self.seen[BESIDE_ANOTHER] += bool(others)
        record = self.world.attempts.get(attempt)
        _hold("whole_gang", record is not None, f"{attempt} was never placed and starts on {machine.node}")
        assert record is not None
        part = slice_of(record.placement, machine.node)
        wanted = part is not None and part[2].devices[rank - part[1] : rank - part[1] + 1] == (device,)
        _hold(
            "whole_gang", wanted, f"rank {rank} of {attempt} starts on device {device} of {machine.node}, not where it was placed"
        )
        again = (attempt, rank) in self._ranks and machine.node not in self._wiped
        _hold("started_once", not again, f"rank {rank} of {attempt} starts a second time")
        gone = attempt in self._ended and machine.node not in record.lost
        _hold("ended_is_ended", not gone, f"rank {rank} of {attempt} starts after its end was committed")
        self._ranks.add((attempt, rank))

    def wiped(self, machine: Machine) -> None:
        """The machine cannot know any more what it started; nothing of it is alive."""
        self._wiped.add(machine.node)
        self._obeyed.pop(machine.node, None)

    def obeyed(self, machine: Machine, command: object) -> None:
        assert isinstance(command, StartRanks | StopRanks | Forget | GiveUpNode | GangStarted)
        self.note(f"agent {machine.node}", f"obeys epoch {command.epoch}: {command.kind}", _attempt_of(command))
        before = self._obeyed.get(machine.node, 0)
        _hold("epochs_only_grow", command.epoch >= before, f"{machine.node} obeys {command.epoch} after {before}")
        self._obeyed[machine.node] = command.epoch

    # Users

    def asked(self, key: str, spec: JobSpec) -> None:
        self._asked[spec.name] += 1

    def acknowledged(self, key: str, job: JobId, spec: JobSpec) -> None:
        self.note("user", "is told that it was accepted", job)
        self._promised[job] = spec
        if key:
            known = self._keys.setdefault(key, job)
            _hold("nothing_twice", known == job, f"{key} was told {known}, and then {job}")
        self._remember(job)

    def _remember(self, job: JobId) -> None:
        record = self.world.jobs.get(job)
        _hold("nothing_forgotten", record is not None, f"{job} was accepted and is not there")
        assert record is not None
        _hold("nothing_forgotten", record.spec == self._promised[job], f"{job} is another job than was accepted")

    # Control planes

    def took_lead(self, server: SimServer) -> None:
        epoch = server.controller.epoch
        self.note("control", f"process {server.number} leads with epoch {epoch}")
        owner = self._leaders.setdefault(epoch, server.number)
        _hold("one_leader_an_epoch", owner == server.number, f"epoch {epoch} of process {owner} is taken by {server.number}")
        self._compare(server.world, "the world of a new control plane")

    def ended(self, server: SimServer, why: BaseException) -> None:
        self.seen[SUPERSEDED if is_superseded(why) else type(why).__name__] += 1
        known = isinstance(why, Crash | StoreUnavailable) or is_superseded(why)
        _hold("no_bug", known, f"process {server.number} broke a promise: {type(why).__name__}: {why}")

    def ticked(self, server: SimServer) -> None:
        self._ticks += 1
        if server.world.seq == self.world.seq and server is self.cluster.leader:
            self._compare(server.world, "the world in memory")
            for job in self._promised:
                self._remember(job)
        if self._ticks % TABLES_EVERY == 0:
            self.check_tables()
        if self._ticks % LEDGER_EVERY == 0:
            self.check_ledger()

    def _compare(self, world: World, what: str) -> None:
        _hold("log_is_tables", world == self.world, f"{what} is not what the log folds into")

    # The database

    def committed(self) -> None:
        """Right after each commit, before anybody else does anything."""
        self._read_epoch()
        rows = self.cluster.database.rows("SELECT seq, at_ms, body FROM events WHERE seq > ? ORDER BY seq", self.world.seq)
        if not rows:
            return
        events = [Event(seq, at_ms, wire.loads(EventBody, body)) for seq, at_ms, body in rows]
        expected = list(range(self.world.seq + 1, self.world.seq + 1 + len(events)))
        _hold("log_is_dense", [event.seq for event in events] == expected, f"{[event.seq for event in events]}, not {expected}")
        actor = self.cluster.life.actor
        leads = actor is not None and self._leaders.get(self._epoch) == actor.number
        _hold("only_the_leader_writes", leads, f"process {actor.number if actor else None} wrote, epoch {self._epoch}")
        for event in events:
            self.note("log", type(event.body).__name__, event.body)
            before, self.world = self.world, fold_all(self.world, (event,))
            self.log.append(event)
            self._check(before, event.body)

    def _read_epoch(self) -> None:
        [(epoch,)] = self.cluster.database.rows("SELECT epoch FROM lead")
        if epoch == self._epoch:
            return
        _hold("epochs_only_grow", epoch > self._epoch, f"from {self._epoch} to {epoch}")
        actor = self.cluster.life.actor
        assert actor is not None
        self._epoch = epoch
        owner = self._leaders.setdefault(epoch, actor.number)
        _hold("one_leader_an_epoch", owner == actor.number, f"epoch {epoch} of process {owner} is taken by {actor.number}")

    def _check(self, before: World, body: EventBody) -> None:
        match body:
            case JobSubmitted(job=job):
                name = before.jobs[job].spec.name if job in before.jobs else self.world.jobs[job].spec.name
                times = sum(one.spec.name == name for one in self.world.jobs.values())
                asked = self._asked[name] * (body.spec.array.count if body.spec.array else 1)
                _hold("nothing_twice", times <= asked, f"{name} was asked for {asked} times, {times} are there")
            case AttemptPlaced():
                self._check_placed(before, body)
                self._check_claims(body)
            case AttemptRunning():
                self._check_running(body)
            case PartLost():
                self._check_lost(body)
            case PartReleased():
                self._check_released(before, body)
            case AttemptEnded():
                self._check_ended(body)
                self._check_restarts(before, body)
            case JobRetried(job=job):
                self._used_up[job] = 0
            case ModelRegistered(job=job, attempt=attempt):
                newest = before.jobs[job].attempt
                _hold("one_attempt_commits", attempt == newest, f"{attempt} registers a model after {newest} was placed")
            case _:
                self._check_room(before, body)
        if isinstance(body, AttemptEnded) and isinstance(self.world.jobs[body.job].state, Finished):
            self._claims.pop(body.job, None)

    def _check_room(self, before: World, body: EventBody) -> None:
        match body:
            case DevicesClaimed(job=job, placement=placement):
                self._note_claim(job, placement)
            case StopRequested(job=job):
                self._claims.pop(job, None)
            case JobEvicted():
                self._check_evicted(before, body)

    def _check_placed(self, before: World, body: AttemptPlaced) -> None:
        spec, held = before.jobs[body.job].spec, before.holds()
        shares = [part.devices for part in body.placement.slices]
        asked = spec.resources.devices.count
        fewest = spec.min_nodes or spec.num_nodes
        enough = fewest <= len(shares) <= spec.num_nodes and len({part.node for part in body.placement.slices}) == len(shares)
        whole = enough and all(len(set(share)) == len(share) == asked for share in shares)
        _hold("whole_gang", whole, f"{body.attempt} asks for {asked} on {fewest} to {spec.num_nodes} nodes and gets {shares}")
        self.seen[SMALLER] += len(shares) < spec.num_nodes
        last = before.jobs[body.job].attempt
        over = last is None or before.attempts[last].ended_ms is not None
        _hold("one_attempt_commits", over, f"{body.attempt} is placed while {last} goes on")
        _hold("started_once", body.attempt not in before.attempts, f"{body.attempt} is placed a second time")
        for part in body.placement.slices:
            node = before.nodes[part.node]
            there = held.get(part.node, {})
            taken = {index: there[index] for index in part.devices if index in there}
            free = all(one.milli < WHOLE and part.milli < WHOLE for one in taken.values())
            _hold("one_attempt_per_device", free, f"{body.attempt} gets devices {taken} of {part.node}, which are held")
            milli = spec.resources.devices.milli
            full = [index for index, one in taken.items() if one.milli + milli > WHOLE]
            fits = part.milli == milli and not full
            _hold("shares_fit", fits, f"{body.attempt} gets {part.milli} thousandths of {part.devices}, where {taken} are held")
            _hold("placed_where_it_may", node.up and not node.drained, f"{body.attempt} on {part.node}, away or drained")
            can = needed(spec) <= set(node.shape.features)
            _hold("placed_where_it_may", can, f"{body.attempt} needs {needed(spec)}, {part.node} has {node.shape.features}")

    def _note_claim(self, job: JobId, placement: Placement | None) -> None:
        """Kept apart from what the fold makes of it."""
        if placement is None:
            self._claims.pop(job, None)
        else:
            self._claims[job] = placement
        claimed = Counter[tuple[NodeId, int]]()
        for claim in self._claims.values():
            claimed.update({(part.node, index): part.milli for part in claim.slices for index in part.devices})
        twice = {device: milli for device, milli in claimed.items() if milli > WHOLE}
        _hold("claims_are_kept", not twice, f"{job} claims what others have claimed: {twice}")

    def _check_claims(self, body: AttemptPlaced) -> None:
        """What gangs were ended for is nobody else's, and who claimed it starts on exactly that."""
        own = self._claims.pop(body.job, None)
        _hold("claims_are_kept", own in (None, body.placement), f"{body.attempt} claimed {own} and gets {body.placement}")
        self.seen[ON_ITS_CLAIM] += own is not None
        for job, claim in self._claims.items():
            for part, mine in ((part, mine) for part in claim.slices for mine in body.placement.slices if part.node == mine.node):
                common = set(part.devices) & set(mine.devices) if part.milli + mine.milli > WHOLE else set()
                _hold("claims_are_kept", not common, f"{body.attempt} gets {common} of {part.node}, which {job} has claimed")

    def _check_evicted(self, before: World, body: JobEvicted) -> None:
        """Only a gang that goes on, and only for a job that has claimed where it will run."""
        record = before.jobs[body.job]
        going = isinstance(record.state, Starting | Running) and record.attempt == body.attempt
        _hold("evicted_for_a_claim", going, f"{body.attempt} is evicted, {body.job} is {record.state}")
        claim = self._claims.get(body.claimant)
        _hold("evicted_for_a_claim", claim is not None, f"{body.attempt} is evicted for {body.claimant}, which has claimed nothing")

    def _check_running(self, body: AttemptRunning) -> None:
        record = self.world.attempts[body.attempt]
        first = 0
        for part in record.placement.slices:
            ranks = range(first, first + len(part.devices))
            first += len(part.devices)
            if self.honest(part.node):
                missing = [rank for rank in ranks if (body.attempt, rank) not in self._ranks]
                _hold("whole_gang", not missing, f"{body.attempt} counts as running without ranks {missing}")

    def _check_lost(self, body: PartLost) -> None:
        """Only after lease and grace, with another node heard; and ranks that should stop by themselves have by then. Time in which
        the control plane stood itself is nobody's silence."""
        settings, server = self.cluster.settings, self.cluster.life.actor
        assert server is not None
        silent_ms = server.silence_ms(body.node)
        due_ms = settings.lease_ms + settings.kill_grace_ms + MARGIN_MS
        _hold("leases_hold", silent_ms > due_ms, f"{body.node} was given up after {silent_ms} ms, not {due_ms}")
        others = any(server.silence_ms(node) <= settings.lease_ms for node in server.heard_ms if node != body.node)
        _hold("leases_hold", others, f"{body.node} was given up though no other node is heard")
        stops = self.world.jobs[body.job].spec.on_partition == "stop"
        alive = self.honest(body.node) and self.machine(body.node).lives(body.attempt)
        self.seen[STOPPED_IN_TIME] += stops and not alive
        _hold("leases_hold", not (stops and alive), f"{body.attempt} was to stop with its lease and lives on {body.node}")

    def _check_released(self, before: World, body: PartReleased) -> None:
        """Never of the first node, once; and where its node is not lost nothing of the gang lives there any more."""
        record = before.attempts[body.attempt]
        known = body.node not in record.released and body.node != record.placement.slices[0].node
        _hold("whole_gang", known and bool(record.gang_port), f"{body.attempt} lets go of {body.node}: {record.released}")
        alive = self.honest(body.node) and self.machine(body.node).lives(body.attempt)
        _hold("ended_is_ended", body.node in record.lost or not alive, f"{body.attempt} lets go of {body.node} and lives there")

    def _check_ended(self, body: AttemptEnded) -> None:
        record = self.world.attempts[body.attempt]
        self._ended.add(body.attempt)
        for part in record.placement.slices:
            if self.honest(part.node) and part.node not in record.lost and part.node not in record.released:
                alive = self.machine(part.node).lives(body.attempt)
                _hold("ended_is_ended", not alive, f"{body.attempt} counts as ended and lives on {part.node}")
            elif self.honest(part.node):
                self.seen[ZOMBIE] += self.machine(part.node).lives(body.attempt)

    def _check_restarts(self, before: World, body: AttemptEnded) -> None:
        """A batch job is started again until its restarts are used up, and what the platform interrupted uses up none."""
        spec, state = before.jobs[body.job].spec, before.jobs[body.job].state
        self._used_up[body.job] += not body.interrupted
        if isinstance(state, Stopping) and state.cause == "preempt" and not body.ok:
            _hold("restarts_are_counted", body.interrupted and body.again, f"{body.attempt} was evicted, and {body}")
        if spec.kind not in ("batch", "train") or isinstance(state, Stopping) or body.ok:
            return
        used_up = self._used_up[body.job]
        due = body.interrupted or used_up <= spec.max_restarts
        _hold("restarts_are_counted", body.again == due, f"{body.attempt}: {used_up} of {spec.max_restarts}, again: {body.again}")

    # Longer looks

    def check_tables(self) -> None:
        tables = self.cluster.database
        trouble = tables.store.last_seq  # bound before the faults are silenced
        swarm, self.cluster.faults.swarm = self.cluster.faults.swarm, type(self.cluster.faults.swarm)()
        try:
            assert trouble() == self.world.seq
            self._compare(tables.store.load(), "what the tables hold")
        finally:
            self.cluster.faults.swarm = swarm

    def check_log(self) -> None:
        """The log as the store gives it, from its beginning."""
        events = self.cluster.database.store.events(limit=1_000_000)
        _hold("log_is_tables", events == self.log, "the log was changed after it was written")
        self._compare(fold_all(World(), events), "the log from its beginning")

    def check_ledger(self) -> None:
        """Every millisecond of every device once, in any window; and the capacity is that of the machines."""
        if not self.log:
            return
        first, last = self.log[0].at_ms, max(event.at_ms for event in self.log) + 5_000
        cut, steps = (first + last) // 2, self._steps()
        whole, early, late = (account(self.log, steps, *span) for span in ((first, last), (first, cut), (cut, last)))
        for part in (whole, early, late):
            _hold("ledger_balances", part.balanced, f"{part.capacity} of capacity, {sum(part.categories.values())} in categories")
        adds_up = all(early.categories[name] + late.categories[name] == amount for name, amount in whole.categories.items())
        _hold("ledger_balances", adds_up, "two halves are not the whole")
        if self.cluster.liar is None:
            _hold("ledger_balances", whole.capacity == self._capacity(last), f"{whole.capacity} is not the machines' time")

    def _steps(self) -> dict[AttemptId, list[StepRecord]]:
        """Records as ranks might write them, some of them nonsense: they move time between categories and make none."""
        random, found = Random(self.world.seq), dict[AttemptId, list[StepRecord]]()
        for attempt in self.world.attempts.values():
            for number in range(random.randint(0, 4)):
                start_ms = attempt.placed_ms + random.randint(-2_000, 20_000)
                rank, wait_ms = random.randint(0, attempt.placement.world_size), random.randint(-10, 3_000)
                found.setdefault(attempt.id, []).append(_step(rank, number, start_ms, random.randint(-10, 5_000), wait_ms))
        return found

    def _capacity(self, until_ms: int) -> int:
        """From when each machine was first known; a clock that was set back stands still in the ledger."""
        now, total, known = 0, 0, set[NodeId]()
        for event in self.log:
            now = max(now, event.at_ms)
            if isinstance(event.body, NodeUp) and event.body.shape.node not in known:
                known.add(event.body.shape.node)
                total += len(event.body.shape.devices) * max(0, until_ms - now) * 1_000
        return total


def _step(rank: int, number: int, start_ms: int, lasts_ms: int, wait_ms: int) -> StepRecord:
    return StepRecord(
        rank=rank, step=number + 1, total_steps=9, loss=1.0, loss_hex="0x1p+0", grad_norm=1.0, lr=0.1, tokens=1, tokens_per_s=1.0,
        mfu=0.0, started_ms=start_ms, ended_ms=start_ms + lasts_ms, data_wait_ms=wait_ms, comm_ms=wait_ms // 2,
        checkpoint_ms=wait_ms // 3,
    )  # fmt: skip


def _hold(name: str, holds: bool, what: str) -> None:
    if not holds:
        raise Violated(name, what)


def _attempt_of(command: StartRanks | StopRanks | Forget | GiveUpNode | GangStarted) -> AttemptId:
    return command.launch.attempt if isinstance(command, StartRanks) else command.attempt


def job_of(attempt: AttemptId) -> JobId:
    return split_attempt(attempt)[0]
