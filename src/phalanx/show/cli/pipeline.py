"""`phalanx pipeline`: what the schedules of a pipeline leave idle, and a timeline to look at."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.core.errors import SetupError, SpecError
from phalanx.core.pipeline import MICROBATCHES_MAX, PIPELINE_RANKS_MAX
from phalanx.show.cli.options import EXIT_CODES, Output, OutputOption, tools_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from phalanx.core.pipeline import PipelineView, ScheduleView


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("pipeline", epilog=EXIT_CODES)(pipeline)


def pipeline(
    context: typer.Context,
    ranks: Annotated[int, typer.Option(help="Ranks over which the layers are cut.", min=1, max=PIPELINE_RANKS_MAX)],
    microbatches: Annotated[int, typer.Option(help="Microbatches of a step.", min=1, max=MICROBATCHES_MAX)],
    schedule: Annotated[
        str, typer.Option(help="gpipe, 1f1b, bfs, interleaved, zb1p, zbv or dualpipev.", show_default="all, side by side")
    ] = "",
    stages_per_rank: Annotated[
        int, typer.Option(help="Parts of the model on each rank.", min=0, max=PIPELINE_RANKS_MAX, show_default="1, or 2")
    ] = 0,
    layers: Annotated[int, typer.Option(help="Layers of the model.", min=0, max=4096, show_default="as many on each")] = 0,
    embedding: Annotated[float, typer.Option(help="What the embedding costs beside a layer.")] = 0.0,
    output_cost: Annotated[float, typer.Option(help="What the output and the loss cost beside a layer.")] = 0.0,
    forward: Annotated[float, typer.Option(help="Forward of a rank's layers on a microbatch, in any unit.")] = 1.0,
    input_cost: Annotated[float, typer.Option("--input", help="The backward pass to their input.")] = 1.0,
    weight: Annotated[float, typer.Option(help="The backward pass to their weights.")] = 1.0,
    trace: Annotated[Path | None, typer.Option(help="A file for the timeline, which Perfetto opens; with --schedule.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what a pipeline's schedules leave idle, as their own timelines have it and as their formulas say.

    With --schedule the timeline is drawn, and written as a trace with --trace.
    """
    from phalanx.core.pipeline import PipelineAsked, PipelineView
    from phalanx.show.cli.output import emit

    if trace is not None and not schedule:
        raise SpecError("--trace", str(trace), "a trace is of one schedule; name it with --schedule")
    asked = PipelineAsked(
        num_ranks=ranks, num_microbatches=microbatches, schedule=schedule, stages_per_rank=stages_per_rank, layers=layers,
        embedding=embedding, output=output_cost, forward=forward, input=input_cost, weight=weight,
    )  # fmt: skip
    view = tools_of(context).plan_pipeline(asked)
    if trace is not None:
        _write(trace, view)
    emit(output, PipelineView, view, lambda: pipeline_page(view))


def _write(file: Path, view: "PipelineView") -> None:
    import json

    try:
        file.write_text(json.dumps(view.trace), encoding="utf-8")
    except OSError as error:
        raise SetupError("--trace", str(file), f"cannot be written ({error.strerror}); name another file") from error


def pipeline_page(view: "PipelineView") -> "Iterator[RenderableType]":
    """A line for each schedule, and below it a line for each rank of the one that was named."""
    from phalanx.core.units import count_of
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import line

    yield line(
        f"{count_of(view.num_ranks, 'rank')}, {view.num_microbatches:,} microbatch{'' if view.num_microbatches == 1 else 'es'}"
    )
    head = ("SCHEDULE", "STAGES A RANK", "BUBBLE", "FORMULA", "OF ITS TIME", "WITH A BARRIER", "HELD", "LAYERS OF STAGES")
    possible = [one for one in view.schedules if not one.refused]
    yield Grid(head, [_row(one) for one in possible], right=head[1:7], drop=("LAYERS OF STAGES", "WITH A BARRIER"))
    for one in view.schedules:
        if one.refused:
            yield line(f"{one.schedule}: {one.refused}")
    for text in view.lines:
        yield line(text)


def _row(one: "ScheduleView") -> tuple[str, ...]:
    formula = "-" if one.formula is None else f"{one.formula:.4g}"
    layers = " ".join(map(str, one.layers)) or "-"
    stages = str(one.stages_per_rank)
    return (
        one.schedule,
        stages,
        f"{one.bubble:.4g}",
        formula,
        f"{one.bubble_share:.1%}",
        f"{one.waiting_share:.1%}",
        f"{one.held:g}",
        layers,
    )
