"""Options that several commands share, and what every help page ends with. Imported for `--help`, so it imports next to nothing."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from phalanx.core.errors import SpecError
from phalanx.show.cli.completing import job_ids, node_names
from phalanx.show.cli.tools import Tools


class Output(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class SplitOption(StrEnum):
    """Parts of a prepared folder."""

    TRAIN = "train"
    HELD_OUT = "held_out"


EXIT_CODES: Final = (
    "Exit codes: 0 fine; 1 the job failed or was cancelled, or a checkpoint or data is damaged; 2 bad input or a conflict; "
    "3 the server cannot be reached; "
    "4 no such thing; 5 the wait ended before the job did; 70 a bug in Phalanx; 130 detached by Ctrl-C."
)

OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to write the answer.", show_choices=True)]


def named_folder(text: str) -> Path:
    """The folder that an option names. An empty one, as of a variable that is not set, must not mean the current folder."""
    if not text:
        raise SpecError("--home", text, "name a folder, or leave the option out")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SpecError("--home", text, "begins with a user that this machine does not know; write the whole path") from error


HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        parser=named_folder,
        help="The platform's home.  [default: $PHALANX_CLUSTER, else $PHALANX_URL's server, else $PHALANX_HOME, else ~/.phalanx]",
    ),
]
LocalHomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", metavar="DIR", parser=named_folder, help="The platform's home.  [default: $PHALANX_HOME, else ~/.phalanx]"
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, such as tiny-lm-7.", autocompletion=job_ids)]
JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB", help="Jobs' ids, such as tiny-lm-7.", autocompletion=job_ids)]
IsolationOption = Annotated[
    str | None,
    typer.Option(
        metavar="none|uid",
        help="uid: each attempt as a user of its own, in namespaces of its own; needs root. Remembered.  "
        "[default: last time's, else none]",
        show_default=False,
    ),
]
NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="A node's name, as in `phalanx node ls`.", autocompletion=node_names)
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="NAME for the newest version, or NAME:VERSION.")]


def tools_of(context: typer.Context) -> Tools:
    """The callables that app.py injected."""
    tools: Tools = context.obj
    return tools


def leave(code: int) -> None:
    """End the command with `code`."""
    raise typer.Exit(int(code))
