"""What is wrong with a job's layout by its words alone, and how it is told to ranks. What does not fit the model, the ranks or the
fabric: `fabric.layouts`, which the control plane and the ranks ask. Part of `spec_parse`: (field, value, good, what to change)."""

from collections.abc import Iterable, Mapping
from typing import Final

from phalanx.core import wire
from phalanx.core.spec import JobSpec, LayoutSpec
from phalanx.core.spec_sharing import Check

LAYOUT_VARIABLE: Final = "PHALANX_LAYOUT"
"""Of a rank's environment: the job's layout as JSON; not there for the one that a job has which does not say."""

PLAIN: Final = LayoutSpec()


def layout_checks(spec: JobSpec) -> Iterable[Check]:
    layout = spec.layout
    if layout == PLAIN:
        return
    yield "layout", _said(layout), bool(spec.recipe), "is for recipes; a script lays its model out by itself: leave it out"
    yield from words(layout)
    if spec.recovery.in_gang:
        for axis in ("pp", "cp", "tp", "ep", "replicate"):
            size = getattr(layout, axis)
            fix = f"write 1, or leave recovery.in_gang out: with {axis} a gang that loses a rank starts again as a whole"
            yield f"layout.{axis}", size, size == 1, fix


def words(layout: LayoutSpec) -> Iterable[Check]:
    """Of what a rank is told too."""
    for axis in ("pp", "cp", "tp", "ep", "replicate"):
        size = getattr(layout, axis)
        yield f"layout.{axis}", size, size >= 1, "write a whole number above 0"
    alone = layout.cp == 1 and layout.context != PLAIN.context
    yield "layout.context", layout.context, not alone, "write cp too, or leave it out: with cp 1 no sequence is shared"
    for name in ("schedule", "stages_per_rank"):
        value = getattr(layout, name)
        alone = layout.pp == 1 and value != getattr(PLAIN, name)
        yield f"layout.{name}", value, not alone, "write pp too, or leave it out: with pp 1 there is no pipeline"
    stages = layout.stages_per_rank
    yield "layout.stages_per_rank", stages, stages >= 0, "write a whole number above 0, or leave it out"


def layout_of(environ: Mapping[str, str]) -> LayoutSpec:
    """What a rank was told. Raises ValueError for what is no layout."""
    text = environ.get(LAYOUT_VARIABLE, "")
    found: LayoutSpec = wire.loads(LayoutSpec, text) if text else PLAIN
    for name, value, good, fix in words(found):
        if not good:
            raise ValueError(f"{name}: {value!r}: {fix}")
    return found


def layout_variable(layout: LayoutSpec) -> dict[str, str]:
    """The reverse."""
    return {LAYOUT_VARIABLE: wire.dumps(LayoutSpec, layout)} if layout != PLAIN else {}


def _said(layout: LayoutSpec) -> str:
    changed = {name: getattr(layout, name) for name in layout.__slots__ if getattr(layout, name) != getattr(PLAIN, name)}
    return ", ".join(f"{name}: {value}" for name, value in changed.items())
