"""data prepare, show, verify, sample, mix; audit is in `data_audit`, what is of other data than text in `data_samples`."""

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.core.errors import Exit
from phalanx.show.cli import data_samples
from phalanx.show.cli.data_audit import audit
from phalanx.show.cli.options import EXIT_CODES, Output, OutputOption, SplitOption, leave, tools_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Normalize(Enum):
    """Unicode forms."""

    NONE = "none"
    NFC = "nfc"


class PackingOption(Enum):
    """How samples are made of documents."""

    CONCATENATE = "concatenate"
    BEST_FIT = "best_fit"


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("prepare", epilog=EXIT_CODES)(prepare)
    app.command("show", epilog=EXIT_CODES)(show)
    app.command("verify", epilog=EXIT_CODES)(verify)
    app.command("sample", epilog=EXIT_CODES)(sample)
    app.command("audit", epilog=EXIT_CODES)(audit)
    data_samples.add(app)
    app.command("mix", epilog=EXIT_CODES)(mix)
    app.command("push", epilog=EXIT_CODES)(push)


def prepare(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATHS...",
            help="Files of text, .jsonl or .parquet, also .gz and .zst, folders of them, quoted patterns, the same in a store "
            "(s3://bucket/..., gs://, az://), or stdlib: for Python's own sources.",
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
    held_out: Annotated[float, typer.Option(help="Share of the documents that training never sees; above 0, at most 0.5.")] = 0.05,
    text_field: Annotated[str, typer.Option(help="Field of JSONL objects, column of Parquet, that holds the text.")] = "text",
    normalize: Annotated[Normalize, typer.Option(help="Unicode form that texts are brought to.")] = Normalize.NONE,
    min_chars: Annotated[int, typer.Option(help="Leave out texts with fewer characters.", min=0)] = 0,
    dedup: Annotated[bool, typer.Option("--dedup", help="Leave out texts that equal an earlier one.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(help="Processes that read and tokenize; the result is the same.", min=1, max=1024, show_default="cores"),
    ] = None,
    left_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write into it, as lines of JSON, which files were not taken and why.")
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
        held_out=held_out, text_field=text_field, normalize=normalize.value, min_chars=min_chars, dedup=dedup, processes=processes,
        left_out=left_out, force=force,
    )  # fmt: skip
    with stages() as progress:
        summary = tools_of(context).prepare_data(asked, progress)
    show_summary(summary, output)


def show(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="DIR", help="A folder of data, by its manifest.json, or tokens in a store.")],
    page: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Of tokens: also write a page for a browser.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what a prepared folder holds. Only what is shown is read; `phalanx data verify` reads, and compares, every byte."""
    from phalanx.show.cli.stages import stages

    with stages() as progress:
        summary = tools_of(context).show_data(path, progress)
    if page is not None:
        _write_page(page, summary)
    show_summary(summary, output)


def _write_page(file: Path, summary: "Mapping[str, Any]") -> None:
    from phalanx.core.errors import SetupError, SpecError
    from phalanx.show.cli.folder_html import folder_html
    from phalanx.show.cli.text import note

    if file.suffix != ".html":
        raise SpecError("--page", str(file), "name a file that ends in .html")
    if "splits" not in summary:
        raise SpecError("--page", str(file), f"{summary['path']} holds samples, which have no such page; leave it out")
    try:
        file.write_text(folder_html(summary), encoding="utf-8")
    except OSError as error:
        raise SetupError("--page", str(file), f"cannot be written ({error.strerror}); choose another place") from error
    note(f"The page is in {file}.")


def verify(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="DIR", help="A folder of data, by its manifest.json, or tokens in a store.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Read every byte of a prepared folder and compare it with its hash. Exit code 1 names the damaged files."""
    from phalanx.show.cli.stages import stages
    from phalanx.show.cli.text import clean

    with stages() as progress:
        summary = tools_of(context).verify_data(path, progress)
    says, rest = summary.get("says", ""), {name: value for name, value in summary.items() if name != "says"}
    if not says or output is not Output.TABLE:
        show_summary(rest, output)
    if says:
        sys.stderr.write(f"Error: {clean(says)}\n")
        leave(Exit.FAILED)


def push(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A folder made by `phalanx data prepare`.")],
    place: Annotated[str, typer.Argument(metavar="URL", help="Where to put it: s3://bucket/prefix, gs:// or az://.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Put a prepared folder into an object store, its manifest last. Other data that lies there is left alone."""
    from phalanx.show.cli.output import emit_plain, line
    from phalanx.show.cli.output import show as show_parts
    from phalanx.show.cli.stages import stages

    with stages() as progress:
        found = tools_of(context).push_data(path, place, progress)
    if output is Output.TABLE:
        show_parts([line(f"{path} is in {found['place']}")])
    else:
        emit_plain(output, dict(found))


def sample(
    context: typer.Context,
    path: Annotated[
        str, typer.Argument(metavar="DIR|FILE", help="A folder made by `phalanx data prepare`, or a job spec in YAML.")
    ],
    index: Annotated[
        list[int] | None, typer.Option("--index", help="Number of a sample, from 0. Repeatable.", show_default="the first ones")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Samples of this step of a run, counted from 1 as in its metrics.", min=1)
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="With --step: samples of one step over all ranks.", min=1, show_default="of the job")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="With --step: the run's seed.", show_default="of the job, else 0")] = None,
    source: Annotated[str, typer.Option(metavar="NAME", help="Without --step: of this source of the job.")] = "",
    split: Annotated[SplitOption, typer.Option(help="Which part of the folder.")] = SplitOption.TRAIN,
    sequence: Annotated[int | None, typer.Option(help="Tokens of a sample.", min=1, show_default="of the job, else 64")] = None,
    packing: Annotated[
        PackingOption | None, typer.Option(help="How samples are made of documents.", show_default="of the job, else concatenate")
    ] = None,
    most: Annotated[int, typer.Option("-n", metavar="N", help="Show at most so many samples.", min=1, max=1000)] = 3,
    ids: Annotated[bool, typer.Option("--ids", help="Also the token ids.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the text that a model reads, sample by sample.

    Decoded from the shards, with the bounds of the documents: any samples, or those of one step of a run, in the run's own order.
    """
    from phalanx.core.data_asked import SampleAsked
    from phalanx.core.data_views import SamplesView
    from phalanx.show.cli.data_page import samples_page
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.run_data import run_data

    run = run_data(path, packing=packing.value if packing else None, sequence=sequence, seed=seed, batch=batch)
    asked = SampleAsked(
        data=run.data, split=split.value, sequence=run.sequence or 64, source=source, index=tuple(index or ()), step=step,
        batch=run.batch, seed=run.seed or 0, most=most, ids=ids,
    )  # fmt: skip
    found = tools_of(context).sample_data(asked)
    emit(output, SamplesView, found, lambda: samples_page(found))


def mix(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A job spec, or the data of one alone, in YAML.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a field, e.g. data.sources.web.weight=0.5. Repeatable."),
    ] = None,
    first: Annotated[int, typer.Option("--first", metavar="N", help="Also the shares in the first N steps.", min=1)] = 100,
    steps: Annotated[int | None, typer.Option(help="Steps of the run.", min=1, show_default="of the recipe")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples of one step over all ranks.", min=1, show_default="of the recipe and the gang")
    ] = None,
    sequence: Annotated[int | None, typer.Option(help="Tokens of a sample.", min=1, show_default="of the recipe")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the order.", show_default="of the recipe")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what a run will read: of each source how much, how often, and from when on anew.

    Shares that are asked for beside those that the order gives, what each change of weights does, and what looks like a mistake.
    Nothing is submitted.
    """
    from phalanx.core.data_asked import MixAsked
    from phalanx.core.data_views import MixView
    from phalanx.show.cli.mix_page import mix_page
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.run_data import job_data

    run = job_data(file, changes or (), steps=steps, batch=batch, sequence=sequence, seed=seed)
    asked = MixAsked(
        data=run.data, sequence=run.needed("sequence"), seed=run.seed or 0, batch=run.needed("batch"), steps=run.needed("steps"),
        first=first,
    )  # fmt: skip
    found = tools_of(context).mix_data(asked)
    emit(output, MixView, found, lambda: mix_page(found))


def show_summary(summary: "Mapping[str, Any]", output: Output) -> None:
    """What a data set holds."""
    from phalanx.show.cli.folder_page import folder_page
    from phalanx.show.cli.output import emit_plain
    from phalanx.show.cli.output import show as show_parts

    if output is Output.TABLE:
        show_parts(folder_page(summary))
    else:
        from phalanx.core import wire

        emit_plain(output, wire.plain(dict, dict(summary)))
