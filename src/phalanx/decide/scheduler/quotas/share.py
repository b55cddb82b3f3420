"""Who holds how much, for one decision: shares of the fleet, and whether a job may take more."""

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from phalanx.core.devices import WHOLE, Placement
from phalanx.core.ids import JobId
from phalanx.core.policy import ANY
from phalanx.core.reasons import OverLimit, OverQuota, Reason
from phalanx.decide.scheduler.quotas import budgets, cells, quota, saving
from phalanx.decide.scheduler.quotas.holds import Amounts, Holds, Key, host, kind_of
from phalanx.decide.scheduler.quotas.lines import Line, Lines, account, devices, under
from phalanx.decide.scheduler.snapshot import JobFacts, PendingJob, Snapshot
from phalanx.decide.scheduler.where.ground import Ground

_CORES: Final = "cores"
_MEMORY: Final = "memory"
_NOWHERE: Final[frozenset[saving.Account]] = frozenset()


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a job may take devices of a type now. borrows: it would use others' idle quota. reason: why not."""

    ok: bool
    borrows: bool = False
    reason: Reason | None = None


_FREELY: Final = Admission(True)
_BORROWING: Final = Admission(True, borrows=True)


class Tree:
    """Mutable within one decision: `use` and `give` follow starts, claims and evictions.

    capacity: thousandths of devices of the fleet by type. has_quotas: whether anything is guaranteed to anybody. version, moves,
    given: stamps of when anything changed, what is used did, something was let go of.
    """

    def __init__(self, snapshot: Snapshot, ground: Ground, holds: Holds | None = None) -> None:
        self._now_ms = snapshot.now_ms
        self._ground = ground
        self.capacity = {kind: int(total.sum()) * WHOLE for kind, total in ground.total.items()}
        self._usable = {kind: int(total[ground.schedulable].sum()) * WHOLE for kind, total in ground.total.items()}
        self._host = {_CORES: int(ground.cpus.sum() * WHOLE), _MEMORY: int(ground.memory_bytes.sum())}
        self.lines = Lines(snapshot.policy, snapshot.usage)
        for line in self.lines.all:
            if line.queue.cells is not None:
                line.quota = {line.queue.cells.type: cells.devices(line.queue.cells, ground) * WHOLE}
        self.has_quotas = any(line.quota for line in self.lines.all)
        self._has_limits = any(line.limit for line in self.lines.all)
        self._has_budgets = any(line.budget for line in self.lines.all)
        self.version = self.given = self.moves = 0
        self._ticks = 0
        self._refusals: dict[tuple[Line, str, bool], list[tuple[int, Admission]]] = {}
        whole = sum(self.capacity.values()) / WHOLE
        self.lines.had(snapshot.usage, max(1.0, whole) * snapshot.policy.half_life_ms / math.log(2))
        for line in sorted(self.lines.all, key=lambda line: len(line.path)):
            self._weigh(line)
            if line.quota:
                quota.guarantee(line)
        for line in reversed(self.lines.all):
            if line.quota and not line.queue.lend:
                for entry in line.quota:
                    quota.keep(line.path, entry)
        self._owners: dict[tuple[str, tuple[str, ...], int], tuple[Line | None, str]] = {}
        self._owners_at = -1
        self._may_save = (self.has_quotas or self._has_limits) and not snapshot.policy.shares_in_time
        self._saved: dict[saving.Account, JobId] = {}
        self._short: dict[tuple[Line, tuple[str, ...], int], frozenset[saving.Account]] = {}
        self._short_at = -1
        self._begin((holds or Holds()).of(snapshot.running, ground))

    def line(self, job: JobFacts) -> Line:
        """Where its jobs stand."""
        return self.lines.users.get((job.queue, job.user)) or self.lines.user(job.queue, job.user)

    def kind(self, placement: Placement) -> str:
        """Of its devices; a gang runs on one type."""
        return kind_of(placement, self._ground)

    def admit(self, job: JobFacts, kind: str, num_devices: int) -> Admission:
        """Whether the job may take so many devices of a type. What was refused once is refused for the whole decision, whoever is
        asked to let go meanwhile: else a later job would get what an earlier one of the same queue was told to wait for."""
        line, amount = self.line(job), num_devices * job.shape.request.milli
        if not (self.has_quotas or self._has_limits or self._has_budgets):
            return _FREELY
        found = self._asked(line.path, kind, amount, job.preemptible)
        if not found.ok:
            self._refusals.setdefault((line, kind, job.preemptible), []).append((amount, found))
            return found
        earlier = self._refusals.get((line, kind, job.preemptible), ())
        return next((refusal for least, refusal in earlier if least <= amount), found)

    def refusal(self, job: JobFacts, kind: str, num_devices: int) -> Reason | None:
        """Why it may not take so many as things are now, whatever was refused before."""
        return self._asked(self.line(job).path, kind, num_devices * job.shape.request.milli, job.preemptible).reason

    def is_saved(self, job: JobFacts, kind: str) -> bool:
        """Whether what it would have is saved for one that came before it, whoever lets go of something."""
        return saving.refusal(self.line(job).path, kind, 0, self._saved) is not None

    def _asked(self, path: tuple[Line, ...], kind: str, amount: int, preemptible: bool) -> Admission:
        refused: Reason | None = _over_limit(path, kind, amount) if self._has_limits else None
        refused = refused or (budgets.stops(path, self._now_ms) if self._has_budgets else None)
        refused = refused or saving.refusal(path, kind, amount, self._saved)
        return Admission(False, reason=refused) if refused else self._within_quota(path, kind, amount, preemptible)

    def borrows_for(self, job: JobFacts) -> bool:
        """Whether the job would borrow on some type that it accepts, were it to start now."""
        if not self.has_quotas:
            return False
        path, amount = self.line(job).path, job.shape.num_devices * job.shape.request.milli
        return any(self._borrows(path, kind, amount) for kind in job.shape.request.types or self.capacity if kind in self.capacity)

    def saves_for(self, job: PendingJob) -> frozenset[saving.Account]:
        """Of which accounts the rest is saved for the job, if it has to wait."""
        if not self._may_save or not saving.has_waited_long(job, self._now_ms):
            return _NOWHERE
        if self._short_at != self.version:
            self._short_at = self.version
            self._short.clear()
        path, shape = self.line(job.facts).path, job.facts.shape
        amount = shape.fewest_nodes * shape.request.count * shape.request.milli
        key = (path[1], shape.request.types, amount)
        if key not in self._short:
            kinds = shape.request.types or self.capacity
            self._short[key] = frozenset(one for kind in kinds for one in saving.short_of(path, kind, amount))
        return self._short[key]

    def draws_on(self, job: JobFacts, accounts: AbstractSet[saving.Account]) -> bool:
        """Whether what the job would have counts against one of them."""
        kinds = job.shape.request.types or self.capacity
        return any(one in accounts for kind in kinds for one in saving.accounts(self.line(job).path, kind))

    def save(self, job: PendingJob, reason: Reason) -> None:
        """It has to wait for what its queue may have, or borrows."""
        found = self.saves_for(job)
        new = found - self._saved.keys() if found else found
        if new and (isinstance(reason, OverQuota | OverLimit) or self.borrows_for(job.facts)):
            self._saved.update(dict.fromkeys(new, job.facts.job))
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
        """What is changed within is undone before its end: to whoever looks then, nothing has changed."""
        before = self.version, self.moves, self.given
        yield
        self.version, self.moves, self.given = before

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

    def waits(self, job: JobFacts) -> None:
        """It may take devices, but there are none: what it is guaranteed of them nobody borrows meanwhile."""
        if not self.has_quotas:
            return
        request = job.shape.request
        amount = job.shape.num_devices * request.milli
        if self._owners_at != self.moves:
            self._owners_at = self.moves
            self._owners.clear()
        key = (job.queue, request.types, amount)
        if key not in self._owners:
            self._owners[key] = self._owner(job, amount)
        owner, entry = self._owners[key]
        if owner is not None:
            owner.waiting[entry] = owner.waiting.get(entry, 0) + amount
            if quota.keep(owner.path, entry):
                self.version = self._stamp()

    def _owner(self, job: JobFacts, amount: int) -> tuple[Line | None, str]:
        """Within whose guarantee the job asks for so much, and under what of it."""
        path = self.line(job).path
        for kind in job.shape.request.types or self.capacity:
            owner = quota.guarantor(path, kind, amount)
            if owner is not None:
                return owner, account(owner.quota, kind) or ANY
        return None, ""

    def _within_quota(self, path: tuple[Line, ...], kind: str, amount: int, preemptible: bool) -> Admission:
        if not self.has_quotas:
            return _FREELY
        if quota.guarantor(path, kind, amount) is not None:
            return _FREELY
        owners = [line for line in path if account(line.quota, kind) is not None]
        borrows = quota.encroaches(path, kind, amount, self.capacity)
        unwilling = next((line for line in path if not line.queue.borrow and (borrows or line in owners)), None)
        if unwilling is not None:
            return self._refused(unwilling, kind, amount, "it may not use more (borrow: false)", unwilling in owners)
        if (owners or borrows) and not preemptible:
            why = "a job that is not preemptible may not use more"
            most = max(owners, key=lambda line: line.quota[account(line.quota, kind) or kind], default=path[1])
            return self._refused(most, kind, amount, why, bool(owners))
        if borrows and not self._is_lent(path, kind, amount):
            why = "what others are guaranteed is not lent, or is waited for by their own jobs"
            return self._refused(owners[0] if owners else path[1], kind, amount, why)
        return _BORROWING if borrows else _FREELY

    def _borrows(self, path: tuple[Line, ...], kind: str, amount: int) -> bool:
        return quota.guarantor(path, kind, amount) is None and quota.encroaches(path, kind, amount, self.capacity)

    def _is_lent(self, path: tuple[Line, ...], kind: str, amount: int) -> bool:
        """Whether it leaves what others keep of their quotas."""
        kept = quota.kept_by_others(path)
        used, root = self.lines.root.used, self.lines.root
        if kept.get(kind, 0) > 0 and used.get(kind, 0) + amount > self._usable.get(kind, 0) - kept[kind]:
            return False
        whole = sum(kept.values())
        return whole <= 0 or sum(root.used.values()) + amount <= sum(self._usable.values()) - whole

    def _refused(self, line: Line, kind: str, amount: int, because: str, for_ever: bool = False) -> Admission:
        entry = account(line.quota, kind) or kind
        used = under(line.used, line.quota, entry)
        guaranteed = devices(line.quota.get(entry, 0))
        return Admission(False, reason=OverQuota(line.name, entry, guaranteed, devices(used), devices(amount), because, for_ever))

    def _begin(self, holds: Mapping[Key, Amounts]) -> None:
        """What gangs hold."""
        in_queues: dict[tuple[Line, str], int] = {}
        for (queue, user, kind), (amount, cores, memory, leaving, _) in holds.items():
            line = self.lines.user(queue, user)
            _add(line, kind, amount, cores, memory)
            _hold(line, kind, amount + leaving)
            above = line.path[1]
            in_queues[above, kind] = in_queues.get((above, kind), 0) + amount
        for line in self.lines.all:
            self._weigh(line)
        if self.has_quotas:
            for (above, kind), amount in in_queues.items():
                quota.commit(above.path, kind, amount)
                quota.keep(above.path, kind)

    def _change(self, job: JobFacts, kind: str, amount: int) -> None:
        self._put(self.line(job), kind, amount, *host(job, amount))

    def _put(self, line: Line, kind: str, amount: int, cores: int, memory: int) -> None:
        self.version = self.moves = self._stamp()
        _add(line, kind, amount, cores, memory)
        for one in line.path:
            self._weigh(one)
        if amount > 0:
            _hold(line, kind, amount)
        if self.has_quotas:
            quota.commit(line.path, kind, amount)
            quota.keep(line.path, kind)

    def _weigh(self, line: Line) -> None:
        """Dominant share of the fleet that it has, and the share that it has had, for its weight (Ghodsi et al., NSDI 2011)."""
        parts = [*_parts(line.used, self.capacity), *_parts(line.host, self._host)]
        line.has = max(parts, default=0.0)
        line.share = (line.has + line.usage) / line.weight


def _add(line: Line, kind: str, amount: int, cores: int, memory: int) -> None:
    for one in line.path:
        one.used[kind] = one.used.get(kind, 0) + amount
        if cores or memory:
            one.host[_CORES] = one.host.get(_CORES, 0) + cores
            one.host[_MEMORY] = one.host.get(_MEMORY, 0) + memory


def _parts(amounts: Mapping[str, int], whole: Mapping[str, int]) -> Iterator[float]:
    return (amount / whole[name] for name, amount in amounts.items() if whole.get(name))


def _hold(line: Line, kind: str, amount: int) -> None:
    for one in line.path:
        one.held[kind] = one.held.get(kind, 0) + amount


def _over_limit(path: Iterable[Line], kind: str, amount: int) -> OverLimit | None:
    for line in path:
        entry = account(line.limit, kind)
        if entry is not None:
            held, limit = under(line.held, line.limit, entry), line.limit[entry]
            if held + amount > limit:
                return OverLimit(line.name, entry, devices(limit), devices(held), devices(amount))
    return None
