"""Who holds how much, for one decision: shares of the fleet, and whether a job may take more."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from phalanx.core.devices import WHOLE, Placement
from phalanx.core.reasons import OverLimit, OverQuota, Reason
from phalanx.decide.scheduler.quotas import cells, quota, saving
from phalanx.decide.scheduler.quotas.admission import FREELY, Admission, Admissions, Bar, Found
from phalanx.decide.scheduler.quotas.holds import Held, Holds, host, kind_of
from phalanx.decide.scheduler.quotas.lines import CORES, MEMORY, Line, Lines, account, under
from phalanx.decide.scheduler.room.gangs import Gangs
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, Snapshot
from phalanx.decide.scheduler.where.ground import Ground

_MAY_NOT: Final = (OverQuota, OverLimit)


class Tree:
    """Mutable within one decision: `use` and `give` follow starts, claims and evictions.

    capacity: thousandths of devices of the fleet by type. has_quotas: whether anything is guaranteed to anybody. version, moves,
    given: stamps of when anything changed, what is used did, something was let go of.
    """

    def __init__(self, snapshot: Snapshot, ground: Ground, held: Held | None = None) -> None:
        self._now_ms = snapshot.now_ms
        self._ground = ground
        self.capacity = {kind: int(total.sum()) * WHOLE for kind, total in ground.total.items()}
        self._host = {CORES: int(ground.cpus.sum() * WHOLE), MEMORY: int(ground.memory_bytes.sum())}
        self.held = Holds().of(Gangs.of(snapshot.running, ground), ground) if held is None else held
        queues = {name.partition("/")[0] for name in snapshot.usage}
        self.lines = Lines(snapshot.policy, queues, self.held, self.capacity, self._host)
        for line in self.lines.all:
            if line.queue.cells is not None:
                line.quota = {line.queue.cells.type: cells.devices(line.queue.cells, ground) * WHOLE}
        self.has_quotas = any(line.quota for line in self.lines.all)
        has_limits = any(line.limit for line in self.lines.all)
        self._has_rules = self.has_quotas or has_limits or any(line.budget for line in self.lines.all)
        self.version = self.given = self.moves = 0
        self._ticks = 0
        self._is_trial = False
        self._refusals: dict[tuple[str, bool], dict[str, list[tuple[int, Admission]]]] = {}
        whole = sum(self.capacity.values()) / WHOLE
        self.lines.had(snapshot.usage, max(1.0, whole) * snapshot.policy.half_life_ms / math.log(2))
        for line in sorted(self.lines.all, key=lambda line: len(line.path)):
            line.weigh(self.capacity, self._host)
            if line.quota:
                quota.guarantee(line)
        for line in reversed(self.lines.all):
            if line.quota and not line.queue.lend:
                for entry in line.quota:
                    quota.keep(line.path, entry)
        self._may_save = (self.has_quotas or has_limits) and not snapshot.policy.shares_in_time
        usable = {kind: int(total[ground.schedulable].sum()) * WHOLE for kind, total in ground.total.items()}
        promised = dict(self.lines.root.committed) if self.has_quotas else None  # of which nothing is held yet
        self._admissions = Admissions(self.lines.root, promised, self.capacity, usable, snapshot.now_ms)
        self._admissions_at = self.moves
        self._commit()

    def line(self, job: JobFacts) -> Line:
        """Where its jobs stand."""
        return self.lines.users.get((job.queue, job.user)) or self.lines.user(job.queue, job.user)

    def kind(self, placement: Placement) -> str:
        """Of its devices; a gang runs on one type."""
        return kind_of(placement, self._ground)

    def admit(self, job: JobFacts, kind: str, num_devices: int) -> Admission:
        """Whether the job may take so many devices of a type. What was refused once is refused for the whole decision, whoever is
        asked to let go meanwhile: else a later job would get what an earlier one of the same queue was told to wait for."""
        if not self._has_rules:
            return FREELY
        amount = num_devices * job.shape.request.milli
        found = self._rules().asked(self.lines.queue(job.queue), kind, amount, job.preemptible)
        if found.ok:
            return (self._refused_before(job, kind, amount) or found) if self._refusals else found
        self.refuse(job, (kind,), amount, (found,))
        return found

    def _refused_before(self, job: JobFacts, kind: str, amount: int) -> Admission | None:
        """To a job of the queue that asked for no more. What one that may be ended was refused, one that may not had not got."""
        for preemptible in (True,) if job.preemptible else (True, False):
            for least, refusal in self._refusals.get((job.queue, preemptible), {}).get(kind, ()):
                if least <= amount:
                    return refusal
        return None

    def bars(self, job: JobFacts, kinds: Sequence[str], amount: int) -> list[Bar | None]:
        """What refuses the job so much of each type, if anything does that is looked at before guarantees are."""
        return self._rules().bars(self.lines.queue(job.queue), kinds, amount)

    def refuse(self, job: JobFacts, kinds: Sequence[str], amount: int, told: Sequence[Admission]) -> None:
        """So much of each type, for the whole decision."""
        of_kind = self._refusals.setdefault((job.queue, job.preemptible), {})
        for kind, found in zip(kinds, told, strict=True):
            earlier = of_kind.get(kind)
            if earlier is None:
                of_kind[kind] = [(amount, found)]
            elif amount < earlier[-1][0]:  # else one that is there already says it
                earlier.append((amount, found))

    def refusal(self, job: JobFacts, kind: str, num_devices: int) -> Reason | None:
        """Why it may not take so many as things are now, whatever was refused before."""
        amount = num_devices * job.shape.request.milli
        return self._rules().asked(self.lines.queue(job.queue), kind, amount, job.preemptible).reason

    def is_saved(self, job: JobFacts, kind: str) -> bool:
        """Whether what it would have is saved for one that came before it, whoever lets go of something."""
        return self._rules().is_saved(self.lines.queue(job.queue), kind)

    def borrows_for(self, job: JobFacts) -> bool:
        """Whether the job would borrow on some type that it accepts, were it to start now."""
        request = job.shape.request
        return self.would_borrow(job.queue, request.types, job.shape.num_devices * request.milli)

    def would_borrow(self, queue: str, types: tuple[str, ...], amount: int) -> bool:
        """Whether a job of the queue that asks for so much of these types would."""
        return self._rules().would_borrow(self.lines.queue(queue), types, amount)

    def is_within(self, queue: str, types: tuple[str, ...], amount: int) -> bool:
        """Whether so much of these types is what the queue, or one that it is part of, is guaranteed."""
        return self._rules().is_within(self.lines.queue(queue), types, amount)

    def saves_for(self, job: PendingJob) -> bool:
        """Whether what its queue has left is saved for the job, if it has to wait."""
        return self._may_save and saving.has_waited_long(job, self._now_ms)

    def may_have(self, job: JobFacts) -> bool:
        """Whether its queue may have it now, of some type, were there devices."""
        rules, queue, request = self._rules(), self.lines.queue(job.queue), job.shape.request
        kinds = [kind for kind in request.types or self.capacity if kind in self.capacity]
        return any(rules.asked(queue, kind, _fewest(job), job.preemptible).ok for kind in kinds)

    def needs(self, job: JobFacts) -> Mapping[saving.Account, int]:
        """What would hold the job if nothing of it were used, and how much of it."""
        return self._rules().needs(self.lines.queue(job.queue), job.shape.request.types, _fewest(job))

    def room_beside(self, queue: str, types: tuple[str, ...], needs: Mapping[saving.Account, int]) -> float:
        """How much a job of the queue may have and leave others so much of each."""
        return self._rules().room_beside(self.lines.queue(queue), types, needs)

    def _short_of(self, job: JobFacts) -> frozenset[saving.Account]:
        return self._rules().short_of(self.lines.queue(job.queue), job.shape.request.types, _fewest(job))

    def _rules(self) -> Admissions:
        """As things are now."""
        if self._admissions_at != self.moves:
            self._admissions_at = self.moves
            self._admissions.found = Found()
        return self._admissions

    def save(self, job: PendingJob, number: int, reason: Reason) -> None:
        """It has to wait for what its queue may have, or borrows. number: of its shape; one of each saves for all like it."""
        if not self._may_save:
            return
        facts, rules = job.facts, self._rules()
        asks = facts.queue, facts.shape.request.types
        if asks in rules.found.exhausted or not saving.has_waited_long(job, self._now_ms):
            return
        unsaved = rules.unsaved(self.lines.queue(facts.queue), asks[1])
        if not unsaved:
            rules.found.exhausted.add(asks)
            return
        is_refused = isinstance(reason, _MAY_NOT)
        alike, settled = (number, facts.queue, is_refused), rules.found.settled
        if alike in settled:
            return
        settled.add(alike)
        new = self._short_of(facts) & unsaved
        if new and (is_refused or self.borrows_for(facts)):
            rules.save(new, facts.job)
            self.version = self._stamp()

    def is_over_quota(self, line: Line) -> bool:
        """Whether it holds devices that it has no quota for."""
        entries = {kind: account(line.quota, kind) for kind, amount in line.used.items() if amount > 0}
        return any(entry is None or under(line.used, line.quota, entry) > line.quota[entry] for entry in entries.values())

    def use(self, job: JobFacts, kind: str, num_devices: int) -> None:
        """The job takes them."""
        self._change(job, kind, num_devices * job.shape.request.milli)

    def give(self, job: JobFacts, kind: str, num_devices: int) -> None:
        """The gang is asked to let go of them; until it has, they count for limits."""
        self._change(job, kind, -num_devices * job.shape.request.milli)
        self.given = self.version

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is changed within is undone before its end: to whoever looks then, nothing has changed. Shares stay as they are."""
        found = self._rules().found
        before, self._is_trial = (self.version, self.moves, self.given), True
        yield
        (self.version, self.moves, self.given), self._is_trial = before, False
        self._admissions.found, self._admissions_at = found, self.moves

    def _stamp(self) -> int:
        """None is given twice."""
        self._ticks += 1
        return self._ticks

    def take_back(self, job: JobFacts, kind: str, num_devices: int) -> None:
        """The gang is not asked to let go after all."""
        self._change(job, kind, num_devices * job.shape.request.milli)
        _hold(self.line(job), kind, -num_devices * job.shape.request.milli)

    def drop(self, job: JobFacts, kind: str, num_devices: int) -> None:
        """The job gives up its claim to them."""
        self.give(job, kind, num_devices)
        _hold(self.line(job), kind, -num_devices * job.shape.request.milli)

    def try_without(self, queue: str, kind: str, amount: int) -> None:
        """In a trial: the queue holds so much less, in thousandths of devices, whoever's they are; or more, if it is negative."""
        assert self._is_trial
        line = self.lines.queue(queue)
        self._put(line, kind, -amount, 0, 0)
        if amount > 0:
            _hold(line, kind, -amount)

    def waits(self, job: JobFacts, number: int, times: int = 1) -> None:
        """It, or so many like it, may take devices, but there are none: what they are guaranteed nobody borrows meanwhile.
        number: of its shape."""
        if not self.has_quotas or (number, job.queue) in self._rules().found.unguaranteed:
            return
        request = job.shape.request
        amount = job.shape.num_devices * request.milli
        owner, entry = self._rules().owner(self.lines.queue(job.queue), request.types, amount)
        if owner is None:
            self._rules().found.unguaranteed.add((number, job.queue))
        else:
            owner.waiting[entry] = owner.waiting.get(entry, 0) + amount * times
            if quota.keep(owner.path, entry):
                self.version = self._stamp()

    def _commit(self) -> None:
        """What gangs hold already, of what is guaranteed."""
        for queue in sorted(self.held.by_queue) if self.has_quotas else ():
            path = self.lines.queue(queue).path
            for kind, amounts in sorted(self.held.by_queue[queue].items()):
                quota.commit(path, kind, amounts[0])
                quota.keep(path, kind)

    def _change(self, job: JobFacts, kind: str, amount: int) -> None:
        self._put(self.line(job), kind, amount, *host(job, amount))

    def _put(self, line: Line, kind: str, amount: int, cores: int, memory: int) -> None:
        self.version = self.moves = self._stamp()
        for one in line.path:
            one.add(kind, amount, cores, memory)
            if not self._is_trial:
                one.weigh(self.capacity, self._host)
        if amount > 0:
            _hold(line, kind, amount)
        if self.has_quotas:
            quota.commit(line.path, kind, amount)
            quota.keep(line.path, kind)


def _fewest(job: JobFacts) -> int:
    """The least that it starts with, in thousandths of devices."""
    return job.shape.fewest_nodes * job.shape.request.count * job.shape.request.milli


def _hold(line: Line, kind: str, amount: int) -> None:
    for one in line.path:
        one.hold(kind, amount)
