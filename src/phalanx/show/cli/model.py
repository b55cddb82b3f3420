"""model ls, model show, model sample, model export."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, ModelArgument, Output, OutputOption, leave, tools_of


class Dtype(StrEnum):
    """Of exported weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Format(StrEnum):
    """Of an export."""

    HF = "hf"
    PEFT = "peft"


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("ls", epilog=EXIT_CODES)(ls)
    app.command("show", epilog=EXIT_CODES)(show)
    app.command("sample", epilog=EXIT_CODES)(sample)
    app.command("export", epilog=EXIT_CODES)(export)


def ls(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Only this model's versions.", show_default=False)] = "",
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List model versions."""
    from phalanx.client import connect
    from phalanx.core.views import ModelView
    from phalanx.show.cli.model_page import models_page
    from phalanx.show.cli.output import emit

    with connect(home) as client:
        models = client.models(name)
    emit(output, tuple[ModelView, ...], models, lambda: models_page(models))


def show(model: ModelArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show one model version and its lineage.

    Data, code, environment, config, checkpoint, job and attempts, as a tree.
    """
    from phalanx.client import connect
    from phalanx.core.views import ModelView
    from phalanx.show.cli.model_page import asked_model, model_page
    from phalanx.show.cli.output import emit

    with connect(home) as client:
        view = asked_model(client, model)
    emit(output, ModelView, view, lambda: model_page(view))


def sample(
    context: typer.Context,
    model: ModelArgument,
    prompt: Annotated[str, typer.Option(help="Text to go on from.")] = "def ",
    tokens: Annotated[int, typer.Option(help="Tokens to generate.", min=1, max=100_000)] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.", min=0)] = 0,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.", min=0.0, max=100.0)] = 0.8,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Generate text from a model version.

    Its weights are checked against their hash first. Needs the extra `phalanx[train]`.
    """
    from phalanx.client import connect
    from phalanx.show.cli.captured import captured
    from phalanx.show.cli.model_page import asked_model, show_sample

    with connect(home) as client:
        view = asked_model(client, model)
    with captured() as written:
        code = tools_of(context).sample_model(Path(view.path), view.weights_digest, prompt, tokens, seed, temperature)
    if code:
        leave(code)  # half a text is no answer, and why stands on standard error
    show_sample(view, {"prompt": prompt, "seed": seed, "temperature": temperature}, written(), output)


def export(
    context: typer.Context,
    model: ModelArgument,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder to make; not there yet, or empty.", show_default=False)],
    form: Annotated[
        Format, typer.Option("--format", help="hf: a whole model for transformers. peft: the adapters of a LoRA run alone.")
    ] = Format.HF,
    dtype: Annotated[Dtype, typer.Option(help="Of the weights. float32 is what was trained; bfloat16 is half.")] = Dtype.FLOAT32,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a model version as a folder that Hugging Face's libraries read.

    Its weights are checked against their hash first. Needs the extra `phalanx[train]`.
    """
    from phalanx.client import connect
    from phalanx.show.cli.model_page import asked_model, show_export

    with connect(home) as client:
        view = asked_model(client, model)
    code = tools_of(context).export_model(Path(view.path), view.weights_digest, to, form.value, dtype.value)
    if code:
        leave(code)  # why stands on standard error
    show_export(view, to, form.value, dtype.value, output)
