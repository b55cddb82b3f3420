"""data prepare, data show, data verify."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, Output, OutputOption, tools_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("prepare", epilog=EXIT_CODES)(prepare)
    app.command("show", epilog=EXIT_CODES)(show)
    app.command("verify", epilog=EXIT_CODES)(verify)


def prepare(
    context: typer.Context,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATHS...", help="Text files, folders of them, or stdlib: for Python's own sources.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to make.")],
    vocab_size: Annotated[int, typer.Option(help="Tokens in the vocabulary.", min=257, max=1_000_000)] = 4096,
    force: Annotated[bool, typer.Option("--force", help="Replace what stands at --out.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make token shards from texts.

    Trains a BPE tokenizer on them and writes .bin/.idx shards with a manifest of checksums, one held out.
    """
    from phalanx.show.cli.stages import stages

    with stages() as progress:
        summary = tools_of(context).prepare_data(paths, out, vocab_size, force, progress)
    _show(summary, output)


def show(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A folder made by `phalanx data prepare`.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a prepared folder holds, once it was checked."""
    _show(tools_of(context).show_data(path), output)


def verify(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A folder made by `phalanx data prepare`.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Read every byte of a prepared folder and compare it with its hash."""
    from phalanx.show.cli.stages import stages

    with stages() as progress:
        summary = tools_of(context).verify_data(path, progress)
    _show(summary, output)


def _show(summary: "Mapping[str, Any]", output: Output) -> None:
    from phalanx.show.cli.output import emit_plain
    from phalanx.show.cli.output import show as show_parts
    from phalanx.show.cli.pages import mapping_page

    if output is Output.TABLE:
        show_parts(mapping_page(summary))
    else:
        from phalanx.core import wire

        emit_plain(output, wire.plain(dict, dict(summary)))
