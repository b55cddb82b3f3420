"""What people see of what a run will read."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from phalanx.core.data_views import MixSourceView, MixView
from phalanx.core.units import count_of
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line, section

_EPOCHS_SHOWN: Final = 4
_DRAWN_SOURCES_MAX: Final = 20
_LEVELS: Final = " ▁▂▃▄▅▆▇█"


def mix_page(view: MixView) -> Iterator[RenderableType]:
    """The sources, the weights where they change, and what looks like a mistake."""
    yield line(_what(view), style="bold")
    yield Text("")
    yield _sources(view)
    if len(view.weights) > 1:
        yield from section("Weights", _weights(view))
        if len(view.sources) <= _DRAWN_SOURCES_MAX:
            yield from section(f"Shares from step 1 to {view.steps:,}, each of 100% at most", _drawn(view))
    if view.warnings:
        yield Text("")
    for warning in view.warnings:
        yield line(f"Warning: {warning}.", style="yellow")


def _what(view: MixView) -> str:
    tokens = view.steps * view.batch * view.sequence
    rows = "whole documents" if view.packing == "best_fit" else "documents end to end"
    return (
        f"{count_of(view.steps, 'step')} of {count_of(view.batch, 'sample')} of {view.sequence:,} tokens, {rows}, "
        f"seed {view.seed}: {tokens:,} tokens from {count_of(len(view.sources), 'source')}"
    )


def _sources(view: MixView) -> Grid:
    first = f"FIRST {view.first:,}"
    head = ("SOURCE", "TOKENS", "SAMPLES", "ASKED", first, "ALL STEPS", "READ", "EPOCHS", "NEXT EPOCHS AFTER STEP", "PATH")
    rows = [
        (
            source.name, f"{source.tokens:,}", f"{source.samples:,}", _share(source.asked), _share(source.first),
            _share(source.whole), f"{source.read:,}", f"{source.epochs:,.2f}", _next_epochs(source), source.path,
        )
        for source in view.sources
    ]  # fmt: skip
    right = ("TOKENS", "SAMPLES", "ASKED", first, "ALL STEPS", "READ", "EPOCHS")
    return Grid(head, rows, right=right, drop=("PATH", "TOKENS", first, "SAMPLES"))


def _next_epochs(source: MixSourceView) -> str:
    shown = [f"{step:,}" for step in source.next_epochs[:_EPOCHS_SHOWN]]
    return ", ".join([*shown, "..."] if len(source.next_epochs) > _EPOCHS_SHOWN else shown) or "-"


def _weights(view: MixView) -> Grid:
    """A row for each change: a share that is another than before stands out."""
    names = [source.name for source in view.sources]
    rows: list[Sequence[object]] = []
    before = view.weights[0].asked
    for weights in view.weights:
        total = weights.steps * view.batch
        for name in names:
            if weights is not view.weights[0] and weights.asked[name] == before[name]:
                continue
            asked = Text(_share(weights.asked[name]), style="" if weights.asked[name] == before[name] else "bold")
            rows.append(
                (
                    f"{weights.after_step:,}",
                    f"{weights.steps:,}",
                    name,
                    asked,
                    _share(weights.read[name] / total),
                    f"{weights.read[name]:,}",
                )
            )
        before = weights.asked
    return Grid(
        ("AFTER STEP", "STEPS", "SOURCE", "ASKED", "GOT", "READ"), rows, right=("AFTER STEP", "STEPS", "ASKED", "GOT", "READ")
    )


def _drawn(view: MixView) -> Grid:
    return Grid(
        ("SOURCE", ""), [(source.name, "".join(_level(share) for share in view.parts[source.name])) for source in view.sources]
    )


def _level(share: float) -> str:
    """Anything above nothing shows."""
    return _LEVELS[max(1, min(8, round(share * 8)))] if share > 0 else _LEVELS[0]


def _share(share: float) -> str:
    return f"{100 * share:.2f}%" if share >= 0.0001 or share == 0 else f"{100 * share:.2g}%"
