"""Deliveries to webhooks, as a page."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from phalanx.core.units import show_duration
from phalanx.core.use_views import DeliveryView, EndedDeliveryView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line, moment_cell


def deliveries_page(deliveries: Sequence[DeliveryView], now_ms: int) -> Iterator[RenderableType]:
    """One row each. now_ms: Unix time."""
    if not deliveries:
        yield line("Every receiver has accepted what it was sent.")
        return
    head = ("NUMBER", "JOB", "OCCASION", "HOST", "TRIES", "NEXT")
    yield Grid(head, [_row(one, now_ms) for one in deliveries], right=("NUMBER", "TRIES"), drop=("OCCASION",), cut="HOST")


def _row(one: DeliveryView, now_ms: int) -> tuple[object, ...]:
    left_ms = one.due_ms - now_ms
    return (one.id, one.job, one.occasion, one.host, one.tries, f"in {show_duration(left_ms)}" if left_ms > 0 else "now")


def history_page(deliveries: Sequence[EndedDeliveryView]) -> Iterator[RenderableType]:
    """One row each, in the order that they come in."""
    if not deliveries:
        yield line("Nothing was accepted by a webhook yet, nor given up.")
        return
    head = ("NUMBER", "JOB", "OCCASION", "HOST", "TRIES", "ENDED (UTC)", "OUTCOME", "WHY")
    rows = [
        (
            one.id, one.job, one.occasion, one.host, one.tries, moment_cell(one.ended_ms), one.outcome.replace("_", " "),
            one.detail or "-",
        )
        for one in deliveries
    ]  # fmt: skip
    yield Grid(head, rows, right=("NUMBER", "TRIES"), drop=("OCCASION", "TRIES", "HOST"), cut="WHY")
