"""Queues as a table, children under their parents."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType

from phalanx.core.units import show_amount
from phalanx.core.views import QueueView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line
from phalanx.show.cli.text import number


def queues_page(queues: Sequence[QueueView]) -> Iterator[RenderableType]:
    """One row a queue; a child is indented under its parent."""
    if not queues:
        yield line("No queue is configured and no job has run; `phalanx policy set FILE` configures queues.")
        return
    head = ("QUEUE", "WEIGHT", "RUN", "WAIT", "HELD", "QUOTA", "LIMIT", "BORROWED", "USED H", "BUDGET")
    rows = [_row(queue, depth) for queue, depth in _nested(queues)]
    yield Grid(head, rows, right=("WEIGHT", "RUN", "WAIT", "USED H"), drop=("LIMIT", "WEIGHT", "USED H", "BUDGET"), cut="QUEUE")


def _nested(queues: Sequence[QueueView], parent: str = "", depth: int = 0) -> Iterator[tuple[QueueView, int]]:
    known = {queue.name for queue in queues}
    for queue in queues:
        if (queue.parent if queue.parent in known else "") == parent:
            yield queue, depth
            yield from _nested(queues, queue.name, depth + 1)


def _row(queue: QueueView, depth: int) -> tuple[object, ...]:
    return (
        "  " * depth + queue.name, f"{queue.weight:g}", queue.running, queue.waiting, _counts(queue.held), _counts(queue.quota),
        _counts(queue.limit), _counts(queue.borrowed), show_amount(queue.used_hours), _budget(queue),
    )  # fmt: skip


def _counts(devices: Mapping[str, float]) -> str:
    return ", ".join(f"{kind}:{number(count)}" for kind, count in devices.items() if count) or "-"


def _budget(queue: QueueView) -> str:
    """'12.5 of 100 h, 40 of 500 USD in the month'."""
    parts = []
    if queue.budget.get("gpu_hours") is not None:
        parts.append(f"{show_amount(queue.spent_hours)} of {show_amount(queue.budget['gpu_hours'])} h")
    if queue.budget.get("money") is not None:
        parts.append(f"{show_amount(queue.spent_usd)} of {show_amount(queue.budget['money'])} USD")
    period = queue.budget.get("period", "month")
    return f"{', '.join(parts)} in {'all' if period == 'total' else f'the {period}'}" if parts else "-"
