"""data index, data pack: data sets of samples that are no text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, Output, OutputOption, tools_of

if TYPE_CHECKING:
    from phalanx.core.data_asked import IndexAsked, PackAsked


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("index", epilog=EXIT_CODES)(index)
    app.command("pack", epilog=EXIT_CODES)(pack)


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
    force: Annotated[bool, typer.Option("--force", help="Replace what stands at --out.")] = False,
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


def _make(context: typer.Context, asked: "IndexAsked | PackAsked", output: Output) -> None:
    from phalanx.show.cli.data import show_summary
    from phalanx.show.cli.stages import stages

    with stages() as progress:
        summary = tools_of(context).make_samples(asked, progress)
    show_summary(summary, output)
