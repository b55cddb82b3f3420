"""data prepare, data show, data verify."""

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, Output, OutputOption, tools_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Normalize(Enum):
    """Unicode forms."""

    NONE = "none"
    NFC = "nfc"


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("prepare", epilog=EXIT_CODES)(prepare)
    app.command("show", epilog=EXIT_CODES)(show)
    app.command("verify", epilog=EXIT_CODES)(verify)
    app.command("push", epilog=EXIT_CODES)(push)


def prepare(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATHS...",
            help="Files of text, .jsonl or .parquet, folders of them, quoted patterns, or stdlib: for Python's own sources.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to make.")],
    vocab_size: Annotated[
        int | None, typer.Option(help="Tokens in the vocabulary to train.", min=257, max=1_000_000, show_default="4096")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A tokenizer.json, or a prepared folder, whose tokenizer is used instead.")
    ] = None,
    end_of_document: Annotated[
        str, typer.Option(help="The given tokenizer's token between documents.", show_default="<|endoftext|>")
    ] = "",
    text_field: Annotated[str, typer.Option(help="Field of JSONL objects, column of Parquet, that holds the text.")] = "text",
    normalize: Annotated[Normalize, typer.Option(help="Unicode form that texts are brought to.")] = Normalize.NONE,
    min_chars: Annotated[int, typer.Option(help="Leave out texts with fewer characters.", min=0)] = 0,
    dedup: Annotated[bool, typer.Option("--dedup", help="Leave out texts that equal an earlier one.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(help="Processes that read and tokenize; the result is the same.", min=1, max=1024, show_default="cores"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what stands at --out.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make token shards from texts.

    Trains a BPE tokenizer on them and writes .bin/.idx shards with a manifest of checksums, one held out. Given again after a kill,
    it goes on from the shards that were finished.
    """
    from phalanx.core.data_asked import PrepareAsked
    from phalanx.show.cli.stages import stages

    asked = PrepareAsked(
        paths=tuple(paths), out=out, vocab_size=vocab_size, tokenizer=tokenizer, end_of_document=end_of_document,
        text_field=text_field, normalize=normalize.value, min_chars=min_chars, dedup=dedup, processes=processes, force=force,
    )  # fmt: skip
    with stages() as progress:
        summary = tools_of(context).prepare_data(asked, progress)
    _show(summary, output)


def show(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="DIR", help="A folder made by `phalanx data prepare`, or a place in a store.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a prepared folder holds, once it was checked; in a store, only what is shown is."""
    _show(tools_of(context).show_data(path), output)


def verify(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="DIR", help="A folder made by `phalanx data prepare`, or a place in a store.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Read every byte of a prepared folder and compare it with its hash."""
    from phalanx.show.cli.stages import stages

    with stages() as progress:
        summary = tools_of(context).verify_data(path, progress)
    _show(summary, output)


def push(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A folder made by `phalanx data prepare`.")],
    place: Annotated[str, typer.Argument(metavar="URL", help="Where to put it: s3://bucket/prefix, gs:// or az://.")],
) -> None:
    """Put a prepared folder into an object store, its manifest last. Other data that lies there is left alone."""
    from phalanx.show.cli.output import line
    from phalanx.show.cli.output import show as show_parts
    from phalanx.show.cli.stages import stages

    with stages() as progress:
        there = tools_of(context).push_data(path, place, progress)
    show_parts([line(f"{path} is in {there}")])


def _show(summary: "Mapping[str, Any]", output: Output) -> None:
    from phalanx.show.cli.output import emit_plain
    from phalanx.show.cli.output import show as show_parts
    from phalanx.show.cli.pages import mapping_page

    if output is Output.TABLE:
        show_parts(mapping_page(summary))
    else:
        from phalanx.core import wire

        emit_plain(output, wire.plain(dict, dict(summary)))
