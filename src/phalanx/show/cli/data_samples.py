"""data index, data pack, data import-mds, import-megatron, export-mds: data that is no text, or of another format."""

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, Output, OutputOption, SplitOption, tools_of

if TYPE_CHECKING:
    from phalanx.core.data_asked import MadeAsked


class DocumentsOption(Enum):
    """What a document of an MDS folder is."""

    SAMPLES = "samples"
    END_MARKS = "end_marks"


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("index", epilog=EXIT_CODES)(index)
    app.command("pack", epilog=EXIT_CODES)(pack)
    app.command("import-mds", epilog=EXIT_CODES)(import_mds)
    app.command("import-megatron", epilog=EXIT_CODES)(import_megatron)
    app.command("export-mds", epilog=EXIT_CODES)(export_mds)


def index(
    context: typer.Context,
    paths: Annotated[list[str], typer.Argument(metavar="PATHS...", help="WebDataset .tar files, folders of them, or patterns.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to make, with links to the tars.", show_default="where the tars lie")
    ] = None,
    classes: Annotated[Path | None, typer.Option(help="File with the name of each class on a line, from number 0 on.")] = None,
    processes: Annotated[
        int | None, typer.Option(help="Processes that read; the result is the same.", min=1, max=1024, show_default="cores")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what stands at --out, or another command's manifest beside the tars.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a data set of WebDataset tars.

    Reads each tar once and writes beside it where every field lies, with checksums, and a manifest. The tars stay as they are.
    """
    from phalanx.core.data_asked import IndexAsked

    _make(context, IndexAsked(paths=tuple(paths), out=out, classes=classes, processes=processes, force=force), output)


def pack(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder with a folder of images for each class.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to make.")],
    shard_mib: Annotated[int, typer.Option(help="Size at which a tar ends, in MiB.", min=1, max=65536)] = 128,
    ending: Annotated[
        list[str] | None, typer.Option(help="Ending of the files to take; may be given again.", show_default="those of images")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what stands at --out.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make WebDataset tars of a folder of images.

    Classes are the folders, numbered by name; the images' bytes stay as they are, in a fixed random order.
    """
    from phalanx.core.data_asked import PackAsked

    _make(context, PackAsked(folder=folder, out=out, shard_mib=shard_mib, endings=tuple(ending or ()), force=force), output)


def import_mds(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that MDSWriter wrote, with its index.json.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to make.")],
    tokens: Annotated[
        str, typer.Option(metavar="COLUMN", help="Column of token ids.", show_default="all columns, as samples")
    ] = "",
    tokenizer: Annotated[Path | None, typer.Option(help="With --tokens: the tokenizer.json that the ids are of.")] = None,
    end_of_document: Annotated[
        str, typer.Option(help="With --tokens: the token between documents.", show_default="<|endoftext|>")
    ] = "",
    documents: Annotated[
        DocumentsOption | None,
        typer.Option(
            help="With --tokens: whether each sample is a document, or what ends with an end mark is.", show_default="samples"
        ),
    ] = None,
    bytes_type: Annotated[str, typer.Option(help="With --tokens: type of the ids in a column of plain bytes, as int64.")] = "",
    held_out: Annotated[float, typer.Option(help="With --tokens: share of the documents that training never sees.")] = 0.05,
    force: Annotated[bool, typer.Option("--force", help="Replace what stands at --out.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a data set of MosaicML Streaming's MDS.

    Token shards of a column of token ids, or tars of all columns, after every hash in the index was compared.
    """
    from phalanx.core.data_asked import ImportMdsAsked

    asked = ImportMdsAsked(
        folder=folder, out=out, tokens=tokens, tokenizer=tokenizer, end_of_document=end_of_document,
        documents=documents.value if documents else None,
        bytes_type=bytes_type, held_out=held_out, force=force,
    )  # fmt: skip
    _make(context, asked, output)


def import_megatron(
    context: typer.Context,
    prefixes: Annotated[
        list[Path], typer.Argument(metavar="PREFIX...", help="Pairs PREFIX.bin and PREFIX.idx, by their path without the ending.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to make.")],
    tokenizer: Annotated[Path, typer.Option(help="The tokenizer.json that the ids are of.")],
    end_of_document: Annotated[str, typer.Option(help="The token between documents.", show_default="<|endoftext|>")] = "",
    held_out: Annotated[float, typer.Option(help="Share of the documents that training never sees.")] = 0.05,
    force: Annotated[bool, typer.Option("--force", help="Replace what stands at --out.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make token shards of indexed data sets that Megatron-LM made.

    Documents stay as they are; one without an end mark gets it. Megatron reads the shards of any prepared folder as they lie.
    """
    from phalanx.core.data_asked import ImportMegatronAsked

    asked = ImportMegatronAsked(
        prefixes=tuple(prefixes), out=out, tokenizer=tokenizer, end_of_document=end_of_document, held_out=held_out, force=force
    )
    _make(context, asked, output)


def export_mds(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder made by `phalanx data prepare`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to make.")],
    split: Annotated[SplitOption, typer.Option(help="Which part of the folder.")] = SplitOption.TRAIN,
    sequence: Annotated[
        int | None, typer.Option(help="Tokens of a sample.", min=1, show_default="a sample for each document")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what stands at --out.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write token shards as MDS, for MosaicML's StreamingDataset."""
    from phalanx.core.data_asked import ExportMdsAsked

    _make(context, ExportMdsAsked(folder=folder, out=out, split=split.value, sequence=sequence, force=force), output)


def _make(context: typer.Context, asked: "MadeAsked", output: Output) -> None:
    from phalanx.show.cli.data import show_summary
    from phalanx.show.cli.stages import stages
    from phalanx.show.cli.text import note

    with stages() as progress:
        summary = tools_of(context).make_data(asked, progress)
    if output is not Output.TABLE and summary.get("note"):
        note(f"Note: {summary['note']}")
    show_summary(summary, output)
