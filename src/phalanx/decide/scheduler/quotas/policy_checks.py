"""What is wrong with a policy on this fleet: promises that it cannot keep."""

from collections.abc import Iterator, Mapping

from phalanx.core.devices import parse_devices
from phalanx.core.policy import ANY, Policy, Tier
from phalanx.core.policy_rules import Problem, guaranteed
from phalanx.core.units import utc_ms

CellCounts = Mapping[tuple[str, str], int]
"""Whole cells of the fleet, by device type and tier ('node' among them)."""


def problems(
    policy: Policy, capacity: Mapping[str, int], cells: CellCounts | None = None, hosts: Mapping[str, int] | None = None
) -> Iterator[Problem]:
    """(field, value, what to change). `capacity`: devices of the fleet by type; an empty fleet promises nothing yet, and refuses
    nothing. cells, and hosts (nodes by the types they have): None where they are not known."""
    if not capacity:
        return
    yield from _unknown_types(policy, capacity)
    yield from _quotas(policy, capacity)
    if cells is not None:
        yield from _cells(policy, cells)
    yield from _bookings(policy, capacity)
    if hosts is not None:
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


def _quotas(policy: Policy, capacity: Mapping[str, int]) -> Iterator[Problem]:
    """What is guaranteed to the queues of the root, together."""
    promised: dict[str, int] = {}
    for name, queue in policy.queues.items():
        if not queue.parent:
            for kind, count in guaranteed(policy, name).items():
                promised[kind] = promised.get(kind, 0) + count
    for kind, count in promised.items():
        if kind != ANY and kind in capacity:
            yield from _too_much(policy, kind, f"{count} {kind}", count, capacity[kind])
    if promised.get(ANY):
        whole = sum(promised.values())
        yield from _too_much(policy, ANY, f"{whole} devices", whole, sum(capacity.values()))


def _too_much(policy: Policy, kind: str, what: str, count: int, there: int) -> Iterator[Problem]:
    if count > there:
        name = _largest(policy, kind)
        fix = f"{what} are guaranteed in all, and the fleet has {there}; lower quotas by {count - there}"
        yield f"queues.{name}.quota.{kind}", policy.queues[name].quota[kind], fix


def _largest(policy: Policy, kind: str) -> str:
    return max(
        (name for name, queue in policy.queues.items() if kind in queue.quota), key=lambda name: policy.queues[name].quota[kind]
    )


def _cells(policy: Policy, cells: CellCounts) -> Iterator[Problem]:
    promised: dict[tuple[str, str], int] = {}
    for name, queue in policy.queues.items():
        if queue.cells is not None:
            of = (queue.cells.type, queue.cells.tier)
            promised[of] = promised.get(of, 0) + queue.cells.count
            there = cells.get(of, 0)
            if promised[of] > there:
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
    booked: list[tuple[str, str, int, int, int]] = []
    for name, booking in policy.bookings.items():
        request = parse_devices(booking.devices)
        kind, start, end = "".join(request.types), utc_ms(booking.start), utc_ms(booking.end)
        there = capacity.get(kind, 0)
        at_once = sum(count for _, other, count, begins, ends in booked if other == kind and begins < end and ends > start)
        if request.count + at_once > there:
            booked_too = f", and {at_once} are booked at the same time" if at_once else ""
            yield f"bookings.{name}.devices", booking.devices, f"the fleet has {there} {kind} devices{booked_too}; book fewer"
        booked.append((name, kind, request.count, start, end))
