"""What people see of models and their lineage."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.tree import Tree

from phalanx.core.errors import NotFound
from phalanx.core.views import ModelView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.options import Output
from phalanx.show.cli.output import emit_plain, line, moment, moment_cell
from phalanx.show.cli.text import clean_log

if TYPE_CHECKING:
    from phalanx.client import Client


def asked_model(client: "Client", text: str) -> ModelView:
    """The version that 'NAME' or 'NAME:VERSION' stands for. Raises NotFound."""
    name, colon, number = text.partition(":")
    if not colon:
        return client.model(name)
    if not (number.isascii() and number.isdigit() and len(number) <= 9):
        raise NotFound("model", text, "write NAME or NAME:VERSION, such as tiny-lm:3; `phalanx model ls` shows them")
    return client.model(name, int(number))


def models_page(models: Sequence[ModelView]) -> Iterator[RenderableType]:
    if not models:
        yield line("No models. A training job registers one when it ends.")
        return
    rows = [
        (f"{one.name}:{one.version}", one.job, _metrics(one.metrics), one.weights_digest[:12], moment_cell(one.created_ms))
        for one in models
    ]
    yield Grid(
        ("MODEL", "JOB", "METRICS", "WEIGHTS", "CREATED (UTC)"), rows, drop=("WEIGHTS", "JOB", "CREATED (UTC)"), cut="METRICS"
    )


def model_page(model: ModelView) -> Iterator[RenderableType]:
    """One version with its lineage as a tree; 'environment.torch' hangs below 'environment'."""
    root = Tree(line(f"{model.name}:{model.version}", style="bold"))
    root.add(line(f"weights {model.weights_digest}"))
    root.add(line(f"files {model.path}"))
    root.add(line(f"created {moment(model.created_ms)}"))
    _grow(root.add(line("metrics", style="bold")), {name: _number(value) for name, value in model.metrics.items()})
    _grow(root.add(line("lineage", style="bold")), {"job": str(model.job), **model.lineage})
    yield root


def show_sample(model: ModelView, asked: Mapping[str, str | int | float], text: str, output: Output) -> None:
    """Generated text, which may hold anything: raw into a pipe, made safe for a terminal."""
    if output is not Output.TABLE:
        emit_plain(output, {"model": f"{model.name}:{model.version}", **asked, "text": text})
        return
    on_terminal = sys.stdout.isatty()
    sys.stdout.write(clean_log(text) if on_terminal else text)
    if on_terminal and not text.endswith("\n"):
        sys.stdout.write("\n")
    sys.stdout.flush()


def show_export(model: ModelView, to: Path, form: str, dtype: str, output: Output) -> None:
    """Where it lies now."""
    name = f"{model.name}:{model.version}"
    said = {"model": name, "to": str(to), "format": form, "dtype": dtype}
    if output is not Output.TABLE:
        emit_plain(output, said)
        return
    sys.stdout.write(clean_log(f"{name} is in {to} ({form}, {dtype})\n"))


def _grow(tree: Tree, values: Mapping[str, str]) -> None:
    branches: dict[str, Tree] = {}
    for key, value in values.items():
        above, dot, leaf = key.partition(".")
        if not dot or not above or not leaf:
            branches[key] = tree.add(line(f"{key}: {value or '-'}"))
            continue
        if above not in branches:
            branches[above] = tree.add(line(above))
        branches[above].add(line(f"{leaf}: {value}"))


def _metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in metrics.items()) or "-"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() else f"{value:.6g}"
