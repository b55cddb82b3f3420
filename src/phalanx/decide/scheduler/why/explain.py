"""Step 4, why not: one dominant reason for each waiting job, with the numbers that a person needs to change something.

First what can never be (`NeverFits`), then what the queue may not have (`refused`), then what is not free: too few devices
(`NoRoom`), or enough of them that do not lie right (`Geometry`). For whom free devices are kept `kept.Kept.why` says.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from phalanx.core.devices import WHOLE
from phalanx.core.policy import ANY
from phalanx.core.reasons import FIRM, Geometry, NeverFits, NoRoom, OverLimit, OverQuota, Reason
from phalanx.decide.scheduler.quotas.lines import devices
from phalanx.decide.scheduler.snapshot import Shape
from phalanx.decide.scheduler.where.eligible import eligible_types, largest_now
from phalanx.decide.scheduler.where.fleet import Fleet
from phalanx.decide.scheduler.why import impossible


def never_fits(shape: Shape, fleet: Fleet) -> NeverFits | None:
    """What an idle fleet of all known nodes lacks to hold the gang, and the smallest change that fits; None when it could
    hold it. An empty fleet refuses nothing: its nodes have yet to come."""
    if fleet.ground.gone.all() or eligible_types(shape, fleet):
        return None
    return impossible.impossible(shape, fleet)


def refused(shape: Shape, reasons: Sequence[Reason]) -> Reason:
    """Why the queue may have the gang on none of its types, of the reasons for each. More than a queue may ever have never fits."""
    never = list[NeverFits]()
    for reason in reasons:
        found = _never_admitted(shape, reason)
        if found is None:
            return reason
        never.append(found)
    return never[0]


def no_room(shape: Shape, kinds: Sequence[str], fleet: Fleet) -> NoRoom | Geometry:
    """Devices of an accepted type, on able nodes: asked for at once, free, held, fenced, and on nodes that may be given no work; or
    what of those that are free the gang could use, when there are enough."""
    found = [fleet.totals(shape, kind) for kind in kinds]
    asked, free = shape.request.count * shape.fewest_nodes, sum(one.free for one in found)
    if free >= asked and not shape.request.is_share:
        nodes, kind = max((largest_now(shape, kind, fleet), kind) for kind in kinds)
        largest, each = nodes * shape.request.count, shape.request.count
        if largest < asked:  # else it has to keep off nodes where ranks of its own live that were given up
            most = 0 if largest else _most_on_a_node(shape, kinds, fleet)
            short = _short_of(shape, kind, fleet)
            return Geometry(asked, free, largest, shape.within or "", each, short, most if most < each else 0)
    total = sum(one.total for one in found)
    fenced, closed = sum(one.fenced for one in found), sum(one.closed for one in found)
    exposed = closed > 0 and any(node.exposed for node in fleet.ground.nodes)
    milli = shape.request.milli if shape.request.is_share else 0
    return NoRoom(asked, free, total - free - fenced, fenced, closed, milli, exposed)


def _most_on_a_node(shape: Shape, kinds: Sequence[str], fleet: Fleet) -> int:
    open_ = fleet.able(shape) & fleet.ground.schedulable
    return max(int(fleet.free[kind][open_].max(initial=0)) for kind in kinds)


def _short_of(shape: Shape, kind: str, fleet: Fleet) -> Literal["", "cpus", "memory"]:
    """What else than devices the nodes lack that have enough of these free: 'cpus', 'memory', or ''."""
    has_devices = fleet.able(shape) & (fleet.free[kind] >= shape.request.count)
    if has_devices.sum() < shape.fewest_nodes:
        return ""
    if shape.cpus > 0 and (has_devices & (fleet.free_cpus >= shape.cpus)).sum() < shape.fewest_nodes:
        return "cpus"
    if shape.memory_bytes > 0 and (has_devices & (fleet.free_memory_bytes >= shape.memory_bytes)).sum() < shape.fewest_nodes:
        return "memory"
    return ""


def _never_admitted(shape: Shape, reason: Reason) -> NeverFits | None:
    """The refusal as one for ever, when the queue may never have even the fewest nodes that will do."""
    least = devices(shape.request.count * shape.fewest_nodes * shape.request.milli)
    match reason:
        case OverLimit(queue=queue, type=kind, limit=most) if least > most:
            where, change = f"at once in queue {queue}", f"raise the limit of {queue} in the policy"
        case OverQuota(queue=queue, type=kind, quota=most, unpromised=True) if least > most:
            where, change = "that nobody is guaranteed", f"give {queue} a quota in the policy"
        case OverQuota(queue=queue, type=kind, quota=most, for_ever=True) if least > most:
            where, change = f"at once in queue {queue}", f"raise the quota of {queue} in the policy"
        case _:
            return None
    firm = "set preemptible: true" if isinstance(reason, OverQuota) and reason.because == FIRM else ""
    changes = [_within(shape, most), firm, "use another queue", change]
    resource = f"{'' if kind == ANY else kind + ' '}devices {where}"
    return NeverFits(resource, str(least), str(most), ", or ".join(filter(None, changes)))


def _within(shape: Shape, most: int) -> str:
    """What to write in the spec so that it asks for so many devices at most: fewer nodes, or else fewer devices on each."""
    request, field, fewest = shape.request, "min_nodes" if shape.min_nodes else "num_nodes", shape.fewest_nodes
    nodes = most * WHOLE // (request.count * request.milli)
    nodes -= nodes % max(1, shape.group)
    if nodes:
        return f"set {field}: {nodes}"
    if most >= fewest:
        return f"set resources.gpus: {replace(request, count=most // fewest)}"
    return f"set {field}: 1 and resources.gpus: {replace(request, count=most)}" if most and shape.group <= 1 else ""
