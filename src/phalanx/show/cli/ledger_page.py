"""What people see of the ledger: every device-second in one category."""

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from phalanx.core.units import device_seconds, show_duration
from phalanx.core.views import LedgerView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line, moment, pairs

BAR_CHARS: Final = 30


def ledger_page(view: LedgerView) -> Iterator[RenderableType]:
    """Bars by category, largest first, then the sum and the cost."""
    rows = [
        (
            name.replace("_", " "),
            Text(bar_of(amount, view.capacity)),
            f"{device_seconds(amount):,.3f}",
            share_of(amount, view.capacity),
        )
        for name, amount in sorted(view.categories.items(), key=lambda item: -item[1])
        if amount
    ]
    yield Grid(("CATEGORY", "", "DEVICE-SECONDS", "SHARE"), rows, right=("DEVICE-SECONDS", "SHARE"), drop=("",))
    yield Text("")
    yield pairs(_summary(view))
    for text in view.notes:
        yield line(f"Note: {text}")


def sums_to_capacity(view: LedgerView) -> bool:
    """The server's word, checked again here: both must hold."""
    return view.balanced and sum(view.categories.values()) == view.capacity


def bar_of(amount: int, capacity: int, chars: int = BAR_CHARS) -> str:
    """A bar of at most `chars`; anything above nothing shows at least a sliver."""
    if capacity <= 0 or amount <= 0:
        return ""
    eighths = max(1, min(chars * 8, round(chars * 8 * amount / capacity)))
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def share_of(amount: int, capacity: int) -> str:
    return f"{100 * amount / capacity:.2f}%" if capacity > 0 else "-"


def _summary(view: LedgerView) -> Iterator[tuple[str, object]]:
    yield "Of", f"job {view.job}" if view.job else "the whole platform"
    yield "From", f"{moment(view.since_ms)} for {show_duration(view.until_ms - view.since_ms)}"
    yield "Devices", view.devices_are
    yield "Capacity", f"{device_seconds(view.capacity):,.3f} device-seconds"
    yield (
        "Sums to capacity",
        "yes" if sums_to_capacity(view) else f"NO: off by {sum(view.categories.values()) - view.capacity} milli-device-ms",
    )
    yield (
        "Cost",
        "unknown: the catalogue has no price for these devices" if view.cost is None else f"{view.cost:,.4f} {view.currency}",
    )
