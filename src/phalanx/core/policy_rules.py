"""What is wrong with a policy in itself, whatever the fleet: (field, value, what to change), the first the most basic."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from phalanx.core.checkpoints import STORE_FORM, is_store
from phalanx.core.devices import parse_devices
from phalanx.core.ids import NAME
from phalanx.core.policy import ANY, DEFAULT_QUEUE, EVICTIONS_MAX, Booking, Budget, Cells, JobClass, NodeRule, Policy, Queue, Window
from phalanx.core.spec_session import IDLE_MS_MIN
from phalanx.core.units import duration_ms, utc_ms

Problem = tuple[str, object, str]

DURATION_MS_MAX: Final = 10 * 365 * 86_400_000
COUNT_MAX: Final = 10_000_000
NUMBER_MAX: Final = 1e12
QUEUES_MAX: Final = 1_000
DEPTH_MAX: Final = 16
RULES_MAX: Final = 5_000
"""A policy is checked and looked through while others wait: a large one must not hold up a fleet."""

_LABEL: Final = "use lower-case letters, digits and '-', at most 63, beginning and ending with a letter or digit"
_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9.-]{0,47}")
_TYPE_FORM: Final = "name a device type such as H100, or '*' for every type that is not named"


def problems(policy: Policy) -> Iterator[Problem]:
    """None for a policy that can work."""
    yield from _size(policy)
    yield from _top(policy)
    yield from _classes(policy.classes)
    for name, queue in policy.queues.items():
        yield from _queue(name, queue, policy)
    yield from _tree(policy)
    for name, booking in policy.bookings.items():
        yield from _booking(name, booking, policy)
    for name, windows in policy.windows.items():
        yield from _windows(name, windows)
    for number, rule in enumerate(policy.nodes):
        yield from _rule(number, rule)


def guaranteed(policy: Policy, queue: str) -> dict[str, int]:
    """Devices by type guaranteed to a queue or to those below it, of which a parent's quota is the sum."""
    below: dict[str, int] = {}
    for name, other in policy.queues.items():
        if other.parent == queue:
            for kind, count in guaranteed(policy, name).items():
                below[kind] = below.get(kind, 0) + count
    own = policy.queues.get(queue, Queue()).quota
    covered = {kind: count for kind, count in below.items() if kind not in own and (ANY not in own or kind == ANY)}
    return {**covered, **own}


def _size(policy: Policy) -> Iterator[Problem]:
    bounds = (("queues", policy.queues, QUEUES_MAX), ("bookings", policy.bookings, QUEUES_MAX), ("nodes", policy.nodes, RULES_MAX))
    for name, parts, most in bounds:
        if len(parts) > most:
            yield name, f"{len(parts)} of them", f"write at most {most}"


def _top(policy: Policy) -> Iterator[Problem]:
    yield from _duration("half_life", policy.half_life, least_ms=1)
    yield from _duration("spot_fallback", policy.spot_fallback)
    yield from _between("heads", policy.heads, 0, 1000)
    yield from _duration("preemption.min_runtime", policy.preemption.min_runtime)
    yield from _between("preemption.max_victims", policy.preemption.max_victims, 1, 100_000)
    yield from _between("preemption.max_evictions", policy.preemption.max_evictions, 0, EVICTIONS_MAX)
    yield from _counts("spares", {kind: count for kind, count in policy.spares.items() if kind != ANY})
    if ANY in policy.spares:
        yield f"spares.{ANY}", policy.spares[ANY], "names no type, so it would keep nothing; name a device type such as H100"
    if policy.idle_timeout_max:
        yield from _duration("idle_timeout_max", policy.idle_timeout_max, least_ms=IDLE_MS_MIN)
    if policy.region and NAME.fullmatch(policy.region) is None:
        yield "region", policy.region, _LABEL
    if policy.checkpoint_store and not is_store(policy.checkpoint_store):
        yield "checkpoint_store", policy.checkpoint_store, STORE_FORM


def _classes(classes: Mapping[str, JobClass]) -> Iterator[Problem]:
    owner: dict[int, str] = {}
    for name, one in classes.items():
        yield from _name("classes", name)
        yield from _between(f"classes.{name}.priority", one.priority, 0, 100)
        if one.wait_target:
            yield from _duration(f"classes.{name}.wait_target", one.wait_target, least_ms=1)
        if one.priority in owner:
            yield f"classes.{name}.priority", one.priority, f"is that of {owner[one.priority]}; give each class its own"
        owner[one.priority] = name


def _queue(name: str, queue: Queue, policy: Policy) -> Iterator[Problem]:
    at = f"queues.{name}"
    yield from _name("queues", name)
    if queue.parent and queue.parent not in policy.queues:
        known = ", ".join(other for other in policy.queues if other != name) or "no other"
        yield f"{at}.parent", queue.parent, f"is no queue; name one of the policy ({known}), or leave it out"
    if not (math.isfinite(queue.weight) and 0 < queue.weight <= 1e6):
        yield f"{at}.weight", queue.weight, "write a number above 0, at most 1000000"
    yield from _counts(f"{at}.quota", queue.quota)
    yield from _counts(f"{at}.limit", queue.limit)
    for kind, quota in queue.quota.items():
        limit = queue.limit.get(kind, queue.limit.get(ANY))
        if limit is not None and quota > limit:
            yield f"{at}.quota.{kind}", quota, f"is more than its limit of {limit}; lower it, or raise the limit"
    if queue.team and NAME.fullmatch(queue.team) is None:
        yield f"{at}.team", queue.team, _LABEL
    above = policy.team_of(queue.parent)
    if queue.team and above not in ("", queue.team):
        yield f"{at}.team", queue.team, f"is part of {queue.parent}, which is {above}'s alone; leave it out, or part the two"
    if queue.budget is not None:
        yield from _budget(f"{at}.budget", queue.budget)
    if queue.cells is not None:
        yield from _cells(name, queue.cells, policy)


def _cells(name: str, cells: Cells, policy: Policy) -> Iterator[Problem]:
    at = f"queues.{name}.cells"
    if policy.queues[name].quota:
        yield at, cells.count, "stands beside a quota; give one of the two"
    for above in _above(name, policy):
        if policy.queues[above].cells is not None:
            yield at, cells.count, f"{above}, which it is part of, has cells; give one of the two"
        if policy.queues[above].quota:
            yield at, cells.count, f"{above}, which it is part of, has a quota; take that away"
    if _TYPE.fullmatch(cells.type) is None:
        yield f"{at}.type", cells.type, "name a device type such as H100"
    yield from _between(f"{at}.count", cells.count, 1, COUNT_MAX)


def _above(name: str, policy: Policy) -> Iterator[str]:
    seen = {name}
    while (name := policy.queues[name].parent) in policy.queues and name not in seen:
        seen.add(name)
        yield name


def _budget(at: str, budget: Budget) -> Iterator[Problem]:
    if budget.gpu_hours is None and budget.money is None:
        yield at, None, "give gpu_hours, money or both"
    for name, value in (("gpu_hours", budget.gpu_hours), ("money", budget.money)):
        if value is not None and not (math.isfinite(value) and 0 <= value <= NUMBER_MAX):
            yield f"{at}.{name}", value, f"write a number from 0 to {NUMBER_MAX:,.0f}"


def _tree(policy: Policy) -> Iterator[Problem]:
    """Parents in a circle; then guarantees that a parent's quota or limit cannot hold."""
    bad = next(_nested(policy), None)
    if bad is not None:
        yield bad
        return
    yield from _periods(policy)
    for name, queue in policy.queues.items():
        below: dict[str, int] = {}
        for child, other in policy.queues.items():
            if other.parent == name:
                for kind, count in guaranteed(policy, child).items():
                    below[kind] = below.get(kind, 0) + count
        for field, most in (("quota", queue.quota), ("limit", queue.limit)):
            for kind, count in most.items():
                asked = _covered(below, most, kind)
                if asked > count:
                    fix = f"is less than the {asked} guaranteed to the queues below it; raise it, or lower theirs"
                    yield f"queues.{name}.{field}.{kind}", count, fix


def _nested(policy: Policy) -> Iterator[Problem]:
    for name, queue in policy.queues.items():
        circle = _circle(policy, name)
        if circle:
            yield f"queues.{name}.parent", queue.parent, f"goes in a circle: {' -> '.join(circle)}; cut it"
        elif sum(1 for _ in _above(name, policy)) >= DEPTH_MAX:
            yield f"queues.{name}.parent", queue.parent, f"is too deep; nest queues at most {DEPTH_MAX} deep"


def _periods(policy: Policy) -> Iterator[Problem]:
    """What a queue has spent is counted once, in the period of the nearest budget."""
    for name, queue in policy.queues.items():
        for above in _above(name, policy) if queue.budget is not None else ():
            other = policy.queues[above].budget
            if queue.budget is not None and other is not None and other.period != queue.budget.period:
                fix = f"is not that of {above}, which it is part of ({other.period}); give both the same"
                yield f"queues.{name}.budget.period", queue.budget.period, fix


def _covered(counts: Mapping[str, int], named: Mapping[str, int], kind: str) -> int:
    """Of `counts`, what falls under `kind` of `named`."""
    if kind != ANY:
        return counts.get(kind, 0)
    return sum(count for other, count in counts.items() if other == ANY or other not in named)


def _circle(policy: Policy, name: str) -> list[str]:
    way: list[str] = []
    while name and name in policy.queues:
        if name in way:
            return [*way[way.index(name) :], name]
        way.append(name)
        name = policy.queues[name].parent
    return []


def _booking(name: str, booking: Booking, policy: Policy) -> Iterator[Problem]:
    at = f"bookings.{name}"
    yield from _name("bookings", name)
    if NAME.fullmatch(booking.queue) is None:
        yield f"{at}.queue", booking.queue, _LABEL
    elif policy.queues and booking.queue not in (*policy.queues, DEFAULT_QUEUE):
        yield f"{at}.queue", booking.queue, f"is no queue; name one of the policy ({', '.join(policy.queues)})"
    try:
        request = parse_devices(booking.devices)
    except ValueError:
        request = None
    if request is None or len(request.types) > 1 or request.is_share:
        yield f"{at}.devices", booking.devices, "write TYPE:COUNT such as 'H100:64'"
    elif not request.types:
        yield (
            f"{at}.devices",
            booking.devices,
            f"names no type, so it would keep nothing; write TYPE:{request.count}, such as 'H100:64'",
        )
    times = {}
    for field in ("start", "end"):
        try:
            times[field] = utc_ms(getattr(booking, field))
        except (ValueError, OverflowError):
            yield f"{at}.{field}", getattr(booking, field), "write a UTC time such as '2026-12-01T09:00Z'"
    if len(times) == 2 and times["end"] <= times["start"]:
        yield f"{at}.end", booking.end, f"is not after its start, {booking.start}; write a later time"


def _windows(name: str, windows: tuple[Window, ...]) -> Iterator[Problem]:
    yield from _name("windows", name)
    if not windows:
        yield f"windows.{name}", [], "is never open; give at least one window, such as {hours: '20:00-06:00'}"
    for number, window in enumerate(windows):
        yield from _window(f"windows.{name}.{number}", window)


def _window(at: str, window: Window) -> Iterator[Problem]:
    yield from _parsed(f"{at}.days", window.days, lambda: window.weekdays)
    yield from _parsed(f"{at}.hours", window.hours, lambda: window.minutes)


def _rule(number: int, rule: NodeRule) -> Iterator[Problem]:
    at = f"nodes.{number}"
    if not rule.match:
        yield f"{at}.match", rule.match, "write a glob of node names, such as 'gpu-*'"
    if rule.price is not None and not (math.isfinite(rule.price) and 0 <= rule.price <= NUMBER_MAX):
        yield f"{at}.price", rule.price, f"write US dollars per device and hour, 0 to {NUMBER_MAX:,.0f}"
    for label, value in rule.labels.items():
        if not label or not value:
            yield f"{at}.labels.{label}", value, "give labels a name and a value"


def _counts(at: str, counts: Mapping[str, int]) -> Iterator[Problem]:
    for kind, count in counts.items():
        if kind != ANY and _TYPE.fullmatch(kind) is None:
            yield f"{at}.{kind}", count, _TYPE_FORM
        yield from _between(f"{at}.{kind}", count, 0, COUNT_MAX)


def _between(at: str, value: int, least: int, most: int) -> Iterator[Problem]:
    if not least <= value <= most:
        yield at, value, f"write a number from {least} to {most}"


def _name(at: str, name: str) -> Iterator[Problem]:
    if NAME.fullmatch(name) is None:
        yield f"{at}.{name}", name, _LABEL


def _duration(at: str, text: str, least_ms: int = 0) -> Iterator[Problem]:
    try:
        good = least_ms <= duration_ms(text) <= DURATION_MS_MAX
    except ValueError as error:
        yield at, text, str(error)
        return
    if not good:
        yield at, text, f"write a duration {'above 0s' if least_ms else 'of 0s or more'}, at most 3650d"


def _parsed(at: str, value: object, parse: Callable[[], object]) -> Iterator[Problem]:
    try:
        parse()
    except ValueError as error:
        yield at, value, str(error)
