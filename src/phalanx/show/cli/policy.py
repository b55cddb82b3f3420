"""policy show, policy check, policy set."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, Output, OutputOption

PolicyFile = Annotated[Path, typer.Argument(help="YAML file with the whole policy.", show_default=False)]


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("show", epilog=EXIT_CODES)(show)
    app.command("check", epilog=EXIT_CODES)(check)
    app.command("set", epilog=EXIT_CODES)(put)


def show(
    whole: Annotated[bool, typer.Option("--all", help="Also what nobody set, with its default.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how the fleet is shared, as YAML that `phalanx policy set` takes. What nobody set is left out."""
    from dataclasses import replace

    from phalanx.client import connect
    from phalanx.core.policy_parse import dump_policy, parse_policy

    with connect(home) as client:
        view = client.policy()
    _emit(replace(view, policy=dump_policy(parse_policy(view.policy), whole=True)) if whole else view, output)


def check(file: PolicyFile, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Check a policy file against the fleet, and change nothing."""
    _put(file, True, home, output)


def put(file: PolicyFile, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Put a policy file in the place of the whole policy, from the next decision on.

    Jobs that run go on; those that wait are decided anew. Gangs that run on what is another queue's now may be asked to
    make room.
    """
    _put(file, False, home, output)


def _put(file: Path, dry_run: bool, home: Path | None, output: Output) -> None:
    from phalanx.client import connect
    from phalanx.core.policy_parse import dump_policy, load_policy

    policy = dump_policy(load_policy(file))
    with connect(home) as client:
        view = client.set_policy(policy, dry_run)
    _emit(view, output, "is acceptable" if dry_run else "is in force from the next decision on")


def _emit(view: object, output: Output, said: str = "") -> None:
    import yaml

    from phalanx.core.views import PolicyView
    from phalanx.show.cli.output import emit, line

    assert isinstance(view, PolicyView)
    text = (
        yaml.safe_dump(dict(view.policy), sort_keys=False, allow_unicode=True).rstrip()
        if view.policy
        else "{}  # the default policy; --all shows it"
    )
    lines = [line(row) for row in text.split("\n")] if not said else [line(f"The policy {said}.")]
    lines += [line(f"Warning: {warning}") for warning in view.warnings]
    emit(output, PolicyView, view, lambda: lines)
