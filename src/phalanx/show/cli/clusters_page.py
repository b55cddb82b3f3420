"""What people see of the offers of several clusters for one job."""

from collections.abc import Iterator

from rich.console import RenderableType

from phalanx.core.clusters import DispatchView, OfferView
from phalanx.core.units import count_of, show_amount_of_data, show_duration
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line, moment_cell, pairs, section

_HEAD = ("CLUSTER", "REGION", "STARTS (UTC)", "DONE (UTC)", "LATE", "MOVES", "DEVICES", "DATA", "DELAY", "COST", "WHY")
_RIGHT = ("LATE", "MOVES", "DEVICES", "DATA", "DELAY", "COST")


def clusters_page(view: DispatchView, end: str = "") -> Iterator[RenderableType]:
    """The offers, the best first, with the parts of what each costs; then who is none, and why. `end`: what was done with it."""
    possible = [offer for offer in view.offers if offer.cost is not None]
    none = [offer for offer in view.offers if offer.cost is None]
    of = count_of(len(view.offers), "cluster")
    yield line(f"{view.job}: {f'{view.chosen} is the best of {of}' if view.chosen else f'none of {of} takes it'}.{end}")
    if possible:
        table = Grid(_HEAD, (_row(offer) for offer in possible), right=_RIGHT, drop=("LATE", "REGION", "MOVES"), cut="WHY")
        yield from section(f"Offers, in {view.currency} for {show_duration(view.run_ms)}", table)
    if none:
        yield from section("Left out", pairs((offer.cluster, offer.sentence) for offer in none))
    for note in view.notes:
        yield line(f"({note})", style="dim")


def _row(offer: OfferView) -> tuple[object, ...]:
    parts = (offer.cost_of_devices, offer.cost_of_data, offer.cost_of_delay, offer.cost)
    return (
        offer.cluster,
        offer.region or "-",
        "not known" if offer.start_ms is None else moment_cell(offer.start_ms),
        moment_cell(offer.done_ms),
        show_duration(offer.late_ms) if offer.late_ms else "-",
        show_amount_of_data(offer.moved_bytes) if offer.moved_bytes else "-",
        *("-" if part is None else f"{part:,.2f}" for part in parts),
        offer.sentence,
    )
