"""`phalanx experts`: a file of loads is read, and where the experts lie is shown."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from phalanx.core.errors import DataError, NotFound
from phalanx.core.experts import SLOTS_MAX
from phalanx.show.cli.options import EXIT_CODES, Output, OutputOption, tools_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from phalanx.core.experts import ExpertsLayerView, ExpertsView

_WORD_CHARS_MAX: Final = 60


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("experts", epilog=EXIT_CODES)(experts)


def experts(
    context: typer.Context,
    loads: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Tokens of each expert: a line of numbers for each layer, or lists of numbers in .json."
        ),
    ],
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each node.", min=1, max=SLOTS_MAX)],
    slots_per_gpu: Annotated[int, typer.Option(help="Replicas that each GPU holds of each layer.", min=1, max=SLOTS_MAX)],
    num_nodes: Annotated[int, typer.Option(help="Nodes.", min=1, max=SLOTS_MAX)] = 1,
    num_groups: Annotated[
        int,
        typer.Option(
            help="Groups of experts that each lie on one node.", min=0, max=SLOTS_MAX, show_default="experts lie anywhere"
        ),
    ] = 0,
    even_shares: Annotated[
        bool, typer.Option("--even-shares", help="For a dispatcher that gives each replica of an expert equally many tokens.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say where the experts of a mixture-of-experts should lie, by their measured loads.

    How many replicas each gets, on which GPUs they lie, and which part of the tokens each one takes: -o json has all of it.
    """
    from phalanx.core.experts import ExpertsAsked, ExpertsView
    from phalanx.show.cli.output import emit

    asked = ExpertsAsked(
        loads=_read(loads), num_nodes=num_nodes, gpus_per_node=gpus_per_node, slots_per_gpu=slots_per_gpu, num_groups=num_groups,
        even_shares=even_shares,
    )  # fmt: skip
    view = tools_of(context).place_experts(asked)
    emit(output, ExpertsView, view, lambda: experts_page(view))


def _read(file: Path) -> tuple[tuple[float, ...], ...]:
    """Raises NotFound, DataError."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFound("FILE", str(file), "is not there; name a file of loads") from error
    except (OSError, UnicodeError) as error:
        raise DataError("FILE", str(file), "cannot be read as text; name a file with a line of numbers for each layer") from error
    rows = _of_json(file, text) if file.suffix == ".json" else _of_lines(text)
    table = tuple(tuple(_number(word, layer) for word in row) for layer, row in enumerate(rows))
    if not any(table):
        raise DataError("FILE", str(file), "has no loads; write a line of numbers for each layer")
    for layer, row in enumerate(table):
        if len(row) != len(table[0]):
            raise DataError(
                "FILE", str(file), f"has {len(table[0])} experts in layer 0 and {len(row)} in layer {layer}; write as many"
            )
    return table


def _of_lines(text: str) -> list[list[str]]:
    return [words for line in text.splitlines() if (words := line.replace(",", " ").split())]


def _of_json(file: Path, text: str) -> list[list[Any]]:
    import json

    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError("FILE", str(file), f"is no JSON ({error}); write [[...], ...], a list of numbers for each layer") from error
    if isinstance(read, list) and read and all(isinstance(row, list) for row in read):
        return read
    raise DataError("FILE", str(file), "is no list of lists; write [[...], ...], a list of numbers for each layer")


def _number(word: object, layer: int) -> float:
    try:
        if isinstance(word, str | int | float) and not isinstance(word, bool):
            return float(word)
    except (ValueError, OverflowError):
        pass
    raise DataError(f"loads of layer {layer}", _cut(word), "write a number of tokens")


def _cut(word: object) -> object:
    """Numbers and words of a line's length say no more."""
    return word if len(str(word)) <= _WORD_CHARS_MAX else f"{str(word)[:_WORD_CHARS_MAX]}…"


def experts_page(view: "ExpertsView") -> "Iterator[RenderableType]":
    """The layout, and one line for each layer."""
    from phalanx.core.units import count_of
    from phalanx.show.cli.grid import Grid
    from phalanx.show.cli.output import line

    gpus = view.num_nodes * view.gpus_per_node
    where = f"in {view.num_groups} groups that each lie on one node" if view.num_groups else "that lie anywhere"
    room = (
        f"{count_of(view.num_nodes, 'node')} of {count_of(view.gpus_per_node, 'GPU')} with {count_of(view.slots_per_gpu, 'slot')}"
    )
    yield line(f"{count_of(len(view.layers), 'layer')} of {view.num_experts} experts {where}, on {room} each")
    head = ("LAYER", "LARGEST / MEAN LOAD", "LEAVES ITS NODE", "REPLICATED", "MOST REPLICAS")
    rows = [
        (str(number), f"{layer.imbalance:.3f}", f"{layer.between_nodes:.1%}", str(sum(n > 1 for n in layer.replicas)), _most(layer))
        for number, layer in enumerate(view.layers)
    ]
    yield Grid(head, rows, right=head[:4])
    worst = max(layer.imbalance for layer in view.layers)
    yield line(f"The fullest of {gpus} GPUs has {worst:.3f} times the mean load. -o json says what lies where.")


def _most(layer: "ExpertsLayerView") -> str:
    most = max(layer.replicas)
    return f"{most} of expert {layer.replicas.index(most)}" if most > 1 else "-"
