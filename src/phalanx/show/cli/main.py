"""The command tree, and the edge where errors become one clear message and an exit code."""

import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any, Final

import typer

from phalanx.core.errors import Bug, Exit, PhalanxError
from phalanx.core.validation import value_of, what_to_write
from phalanx.show.cli import (
    agent,
    artifacts,
    audit,
    backup,
    chaos,
    checkpoint,
    completion,
    curves,
    data,
    events,
    experts,
    fabric,
    gc,
    jobs,
    ledger,
    login,
    logs,
    model,
    moves,
    node,
    pipeline,
    plan,
    platform,
    policy,
    profile,
    queue,
    runs,
    secret,
    sessions,
    sim,
    team,
    token,
    usage,
    user,
    webhook,
)
from phalanx.show.cli.options import EXIT_CODES
from phalanx.show.cli.text import error_text
from phalanx.show.cli.tools import Tools


def run(tools: Tools, argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code, one of core.errors.Exit. Errors are printed, not raised."""
    _never_fail_to_print()
    code = _run(tools, sys.argv[1:] if argv is None else argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _hush()
    return code


def _run(tools: Tools, words: Sequence[str]) -> int:
    if completion.VARIABLE in os.environ:
        completion.prepare()
    asked = [*words[1:], "--help"] if words[:1] in (["help"], ("help",)) else list(words)
    try:
        build().main(args=asked, prog_name="phalanx", obj=tools)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Bug:
        return _bug()
    except PhalanxError as error:
        sys.stderr.write(f"Error: {error_text(error)}\n")
        return int(error.exit_code)
    except Exception:  # noqa: BLE001 (the outermost edge: whatever else comes here is a bug of ours and exits as one)
        return _bug()
    return int(Exit.OK)


def build() -> typer.core.TyperGroup:
    """The whole tree. Plain help pages: rendering them with Rich would double the cost of `phalanx --help`."""
    root = _group("Run and account for training jobs on GPUs.", no_args_is_help=True)
    root.callback()(_root)
    for module in _ROOT:
        module.add(root)
    for module, name, text in (
        (node, "node", "Nodes, and taking them out of service for a while."),
        (queue, "queue", "Queues: who may use how much of the fleet, and does."),
        (policy, "policy", "How the fleet is shared: queues, quotas, preemption, bookings."),
        (agent, "agent", "Agents of other machines: how they join."),
        (model, "model", "Model versions and where they came from."),
        (runs, "runs", "Tracked runs: what they were configured with, and what they came to."),
        (data, "data", "Token shards for training."),
        (checkpoint, "checkpoint", "Checkpoints on a disk of this machine, and whether they are whole."),
        (artifacts, "artifacts", "Files that ranks gave to be kept."),
        (fabric, "fabric", "Links between GPUs: what they carry, and which are slow."),
        (webhook, "webhook", "Messages to webhooks: what waits, and what became of the rest."),
        (secret, "secret", "Values that jobs use and nobody is shown."),
        (user, "user", "People of this platform."),
        (team, "team", "Teams: who is in which, and as what."),
        (token, "token", "What people and their programs show at the door."),
        (sim, "sim", "Traces and saved snapshots, decided by the scheduler under a virtual clock."),
    ):
        group = _group(text, no_args_is_help=True)
        module.add(group)
        root.add_typer(group, name=name, epilog=EXIT_CODES)
    command = typer.main.get_command(root)
    assert isinstance(command, typer.core.TyperGroup)
    return command


_ROOT: Final = (
    platform, jobs, sessions, plan, moves, chaos, events, logs, curves, ledger, usage, gc, backup, experts, pipeline,
    profile, login, audit, completion,
)  # fmt: skip


class _Tree(typer.core.TyperGroup):
    """Commands whose reader may leave early: `phalanx logs JOB | head` has had what it wanted, and that is no failure."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _hush()
            raise typer.Exit(int(Exit.OK)) from None
        except typer.BadParameter as error:
            _say_value(error)
            raise


def _say_value(error: typer.BadParameter) -> None:
    """Typer repeats what Pydantic says of an option, without what was given."""
    problems = getattr(error.__cause__, "errors", None)
    if problems is not None:
        first = problems()[0]
        value, fix = repr(value_of(first)), what_to_write(first)
        error.message = fix if fix.startswith(value) else f"{value}: {fix}"


def _hush() -> None:
    """What is still buffered for a closed pipe goes nowhere, instead of failing again when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _group(text: str, no_args_is_help: bool) -> typer.Typer:
    return typer.Typer(
        cls=_Tree,
        help=text,
        epilog=EXIT_CODES,
        no_args_is_help=no_args_is_help,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"phalanx {version('phalanx')}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Run and account for training jobs on GPUs. Start with `phalanx up`, then `phalanx submit job.yaml --follow`."""


def _bug() -> int:
    traceback.print_exc()
    sys.stderr.write("Error: this is a bug in Phalanx; please report it with the lines above\n")
    return int(Exit.BUG)


def _never_fail_to_print() -> None:
    """A name or a log in a script that the terminal's encoding lacks is shown escaped instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
