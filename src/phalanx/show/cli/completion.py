"""completion: a script by which a shell completes `phalanx`."""

import sys
from enum import StrEnum
from typing import Annotated, Final

import typer

from phalanx.show.cli.options import EXIT_CODES

VARIABLE: Final = "_PHALANX_COMPLETE"
"""Set by the script when a shell asks for words."""

_COMMENT: Final = "# Completion of `phalanx`. To have it in every shell: {how}\n"


class Shell(StrEnum):
    """The shells that can complete `phalanx`."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_HOW: Final = {
    Shell.BASH: "echo 'source <(phalanx completion bash)' >> ~/.bashrc",
    Shell.ZSH: 'phalanx completion zsh > "${fpath[1]}/_phalanx", after `autoload -U compinit; compinit`',
    Shell.FISH: "phalanx completion fish > ~/.config/fish/completions/phalanx.fish",
}


def add(app: typer.Typer) -> None:
    """Add this subject's command."""
    app.command("completion", epilog=EXIT_CODES)(completion)


def prepare() -> None:
    """Makes Typer's own words for the shells known, which it leaves out for an app without its completion options."""
    from typer._completion_classes import completion_init

    completion_init()


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print a completion script for a shell.

    It completes commands and options, and ids of jobs and names of nodes when the server answers within 0.3 s. In bash:
    source <(phalanx completion bash)
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="phalanx", complete_var=VARIABLE, shell=shell.value)
    sys.stdout.write(script.rstrip() + "\n" + _COMMENT.format(how=_HOW[shell]))
    sys.stdout.flush()
