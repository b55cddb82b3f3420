"""What people see of decisions: why a job is where it is, and what would be decided."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from phalanx.core.devices import devices_words
from phalanx.core.views import ChangeView, EtaView, PlacedView, PlanView, QueueEffectView, WhyView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.job_page import without_echo
from phalanx.show.cli.output import line, moment, pairs, section
from phalanx.show.cli.pages import device_word
from phalanx.show.cli.text import number

NODES_SHOWN = 20
"""Of a placement; -o json has all."""

_SAID = ("dependencies", "dependency_cycle", "backoff", "making_room", "no_nodes")
"""Reasons that say what the job waits for, which is no matter of its spec."""


def why_page(view: WhyView, log: str = "") -> Iterator[RenderableType]:
    """`log`: the command that shows why a rank fell, if one did."""
    sentence = without_echo(view.sentence)
    yield line(f"{view.job} is {sentence if sentence.startswith(f'{view.state};') else f'{view.state}: {sentence}'}")
    if view.late:
        yield line(f"{view.late[0].upper()}{view.late[1:]}.")
    if view.eta is not None:
        yield line(eta_text(view.eta))
    if view.changes is not None:
        yield from _changes(view.changes, view.reason, "Submitted again with one of these, it would start now:")
        if (view.reason or {}).get("kind") == "never_fits":
            yield line("A submitted job stays as it is: cancel it, and submit it again with the change.")
    if log:
        yield line(f"What it wrote: {log}")


def plan_page(name: str, view: PlanView) -> Iterator[RenderableType]:
    """A dry run, from what would happen down to what it costs."""
    place = f"; position {view.position} in its queue" if view.position else ""
    of = f" (the first of an array of {view.jobs})" if view.jobs > 1 else ""
    yield line(f"{name}{of}: {view.sentence}{place}. Nothing was submitted.")
    if view.eta is not None:
        yield line(eta_text(view.eta))
    if view.placed:
        yield from section("Placement", _placement(view.placed))
    elif view.answer == "waits":
        yield from _changes(view.changes, view.reason, "It would start now with one of these:")
    if view.answer == "never":
        return
    yield from section("Cost", pairs(_cost(view)))
    if view.queues:
        yield from section("Queue", _queues(view))
    for note in view.notes:
        yield line(f"({note})", style="dim")


def eta_text(eta: EtaView) -> str:
    """'Expected to start between 14:05 and 15:20 UTC (80 %), at the latest about 15:19:30 if no other job comes first.' with days
    where they differ. The end is rounded up, so that it is not before a later second that is named."""
    if eta.vague:
        return "No useful estimate of its start yet."
    low, high = _minute(eta.low_ms), _minute(-(-eta.high_ms // 60_000) * 60_000)
    until = high[11:] if high[:10] == low[:10] else high
    expected = f"about {low}" if low == high else f"between {low} and {until}"
    latest = ""
    if eta.latest_ms is not None:
        second = moment(-(-eta.latest_ms // 1000) * 1000).removesuffix(" UTC")
        second = second[11:] if second[:10] == low[:10] else second
        latest = f", at the latest about {second} if no other job comes first"
    return f"Expected to start {expected} UTC (80 %){latest}."


def _minute(ms: int) -> str:
    return moment(ms).removesuffix(" UTC")[:-3]


def _changes(changes: Sequence[ChangeView], reason: Mapping[str, Any] | None, head: str) -> Iterator[RenderableType]:
    kind = (reason or {}).get("kind")
    if kind == "never_fits" or (kind in _SAID and not changes):
        return
    if not changes:
        yield line("No single change of its spec would start it now.")
        return
    yield line(head)
    for change in changes:
        yield line(f"  {_change_text(change)}")


def _change_text(change: ChangeView) -> str:
    if not change.value:
        return f"{change.field} left out (it is {change.was})"
    return f"{change.field}: {change.value}" + (f" instead of {change.was}" if change.was else "")


def _placement(placed: Sequence[PlacedView]) -> RenderableType:
    rows: list[tuple[str, str, str]] = [
        (one.node, device_word(one.type), devices_words(one.devices)) for one in placed[:NODES_SHOWN]
    ]
    if len(placed) > NODES_SHOWN:
        rows.append((f"and {len(placed) - NODES_SHOWN} more nodes", "", ""))
    return Grid(("NODE", "TYPE", "DEVICES"), rows)


def _cost(view: PlanView) -> Iterator[tuple[str, object]]:
    devices, of_each = number(view.num_devices), f", for each of {view.jobs} jobs" if view.jobs > 1 else ""
    yield "Devices", (f"{devices} x {device_word(view.type)}" if view.type else devices) + of_each
    yield "An hour", "-" if view.cost_per_hour is None else f"{view.cost_per_hour:,.2f} {view.currency}{of_each}"
    if view.cost_of_limit is not None:
        of_all = f", {view.cost_of_limit * view.jobs:,.2f} {view.currency} for all" if view.jobs > 1 else ""
        yield "To max_duration", f"{view.cost_of_limit:,.2f} {view.currency}{of_each}{of_all}"
    if whole := [job for job in view.evicts if job not in view.smaller]:
        yield "Ends for it", ", ".join(whole)
    if smaller := [job for job in view.evicts if job in view.smaller]:
        yield "Made smaller", ", ".join(smaller)


def _queues(view: PlanView) -> RenderableType:
    head = ("QUEUE", "HOLDS", "WITH IT", "QUOTA", "LIMIT", "BUDGET SPENT")
    return Grid(head, (_queue_row(one) for one in view.queues), right=("HOLDS", "WITH IT", "QUOTA", "LIMIT"))


def _queue_row(one: QueueEffectView) -> tuple[object, ...]:
    quota, limit = ("-" if bound is None else bound for bound in (one.quota, one.limit))
    return one.queue, number(one.held), number(one.after), quota, limit, one.budget or "-"
