"""What is wrong with a policy on this fleet: promises that it cannot keep."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter

from phalanx.core.devices import parse_devices
from phalanx.core.policy import ANY, Policy, Tier
from phalanx.core.policy_rules import Problem, guaranteed
from phalanx.core.units import utc_ms
from phalanx.decide.scheduler.quotas.cells import counts as cell_counts
from phalanx.decide.scheduler.snapshot import NodeFacts
from phalanx.decide.scheduler.where.ground import survey

CellCounts = Mapping[tuple[str, str], tuple[int, int]]
"""Whole cells of the fleet and the devices in each, by device type and tier ('node' among them)."""

_Booked = tuple[int, int, int]
"""From when and until when how many."""


def unkept(policy: Policy, nodes: Sequence[NodeFacts]) -> Iterator[Problem]:
    """Of the fleet of these nodes; as `problems`."""
    hosts = Counter(kind for node in nodes for kind in {kind for _, kind in node.devices})
    return problems(policy, capacity_of(nodes), cell_counts(survey(nodes)), hosts)


def capacity_of(nodes: Iterable[NodeFacts]) -> Counter[str]:
    """Devices by type."""
    return Counter(kind for node in nodes for _, kind in node.devices)


def problems(policy: Policy, capacity: Mapping[str, int], cells: CellCounts, hosts: Mapping[str, int]) -> Iterator[Problem]:
    """(field, value, what to change). `capacity`: devices of the fleet by type; an empty fleet promises nothing yet, and refuses
    nothing. hosts: nodes by the types they have."""
    if not capacity:
        return
    yield from _unknown_types(policy, capacity)
    too_many = list(_cells(policy, cells))
    yield from _guarantees(policy, capacity, {} if too_many else cells)
    yield from too_many
    yield from _bookings(policy, capacity)
    yield from _spares(policy, hosts)


def doubts(policy: Policy, capacity: Mapping[str, int], now_ms: int) -> Iterator[Problem]:
    """The same of what does no harm, and may be a mistake all the same."""
    for name, booking in policy.bookings.items():
        if utc_ms(booking.end) <= now_ms:
            yield f"bookings.{name}.end", booking.end, "is past, so it keeps nothing; leave the booking out"
    for name, queue in policy.queues.items():
        for kind, count in queue.limit.items():
            if capacity and kind != ANY and kind not in capacity:
                yield f"queues.{name}.limit.{kind}", count, f"the fleet has none; it has {', '.join(sorted(capacity))}"


def _unknown_types(policy: Policy, capacity: Mapping[str, int]) -> Iterator[Problem]:
    known = ", ".join(sorted(capacity))
    for name, queue in policy.queues.items():
        for kind, count in queue.quota.items():
            if kind != ANY and count and kind not in capacity:
                yield f"queues.{name}.quota.{kind}", count, f"the fleet has none; it has {known}"


def _guarantees(policy: Policy, capacity: Mapping[str, int], cells: CellCounts) -> Iterator[Problem]:
    """What is guaranteed to the queues of the root, and in cells, together."""
    promised: dict[str, int] = {}
    for name, queue in policy.queues.items():
        if queue.cells is not None:  # which have no quota above them that would cover them
            _, size = cells.get((queue.cells.type, queue.cells.tier), (0, 0))
            promised[queue.cells.type] = promised.get(queue.cells.type, 0) + queue.cells.count * size
        for kind, count in {} if queue.parent else guaranteed(policy, name).items():
            promised[kind] = promised.get(kind, 0) + count
    for kind, count in promised.items():
        if kind != ANY and kind in capacity:
            yield from _too_much(policy, kind, f"{count} {kind}", count, capacity[kind])
    if promised.get(ANY):
        whole = sum(promised.values())
        yield from _too_much(policy, ANY, f"{whole} devices", whole, sum(capacity.values()))


def _too_much(policy: Policy, kind: str, what: str, count: int, there: int) -> Iterator[Problem]:
    if count > there:
        field, value = _largest(policy, kind)
        yield field, value, f"{what} are guaranteed in all, and the fleet has {there}; guarantee {count - there} fewer"


def _largest(policy: Policy, kind: str) -> tuple[str, int]:
    """The largest quota of the type, or else what has the most cells of it."""
    queues = policy.queues.items()
    quotas = [(f"queues.{name}.quota.{kind}", queue.quota[kind]) for name, queue in queues if kind in queue.quota]
    owned = [
        (f"queues.{name}.cells.count", queue.cells.count)
        for name, queue in queues
        if queue.cells is not None and queue.cells.type == kind
    ]
    return max(quotas or owned, key=itemgetter(1))


def _cells(policy: Policy, cells: CellCounts) -> Iterator[Problem]:
    promised: dict[tuple[str, str], int] = {}
    for name, queue in policy.queues.items():
        if queue.cells is not None:
            of = (queue.cells.type, queue.cells.tier)
            promised[of] = promised.get(of, 0) + queue.cells.count
            there, _ = cells.get(of, (0, 0))
            tier = queue.cells.tier
            if tier != "node" and not any(count for (_, known), (count, _) in cells.items() if known == tier):
                yield f"queues.{name}.cells.tier", tier, f"no node has a {tier} label; set nodes.labels"
            elif promised[of] > there:
                so_far = "are guaranteed by now" if promised[of] > queue.cells.count else "are asked for"
                fix = f"{promised[of]} {_whole(*of)} {so_far}, and the fleet has {there}; lower the count"
                yield f"queues.{name}.cells.count", queue.cells.count, fix


def _spares(policy: Policy, hosts: Mapping[str, int]) -> Iterator[Problem]:
    """Where all nodes of a type are kept for repairs, nothing ever starts there."""
    for kind, count in policy.spares.items():
        there = hosts.get(kind, 0)
        if count and not there:
            yield f"spares.{kind}", count, f"the fleet has none; it has {', '.join(sorted(hosts))}"
        elif count >= max(1, there):
            yield f"spares.{kind}", count, f"the fleet has {there} nodes of {kind}, and jobs need one at least; keep fewer free"


def _whole(kind: str, tier: Tier | str) -> str:
    return f"nodes of {kind}" if tier == "node" else f"{tier}s of {kind}"


def _bookings(policy: Policy, capacity: Mapping[str, int]) -> Iterator[Problem]:
    """Each alone, then those that overlap."""
    booked: dict[str, list[_Booked]] = {}
    for name, booking in policy.bookings.items():
        request = parse_devices(booking.devices)
        kind, start, end = "".join(request.types), utc_ms(booking.start), utc_ms(booking.end)
        earlier = booked.setdefault(kind, [])
        there, at_once = capacity.get(kind, 0), _most_within(start, end, earlier)
        if request.count + at_once > there:
            booked_too = f", and {at_once} are booked at the same time" if at_once else ""
            yield f"bookings.{name}.devices", booking.devices, f"the fleet has {there} {kind} devices{booked_too}; book fewer"
        earlier.append((start, end, request.count))


def _most_within(start: int, end: int, booked: Iterable[_Booked]) -> int:
    """Devices that are booked at the same instant between the two."""
    overlapping = [one for one in booked if one[0] < end and one[1] > start]
    steps = [(max(begins, start), count) for begins, _, count in overlapping] + [(ends, -count) for _, ends, count in overlapping]
    return max(accumulate(count for _, count in sorted(steps)), default=0)  # what ends then is free for what begins then
