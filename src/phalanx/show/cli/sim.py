"""sim run, sim replay."""

from pathlib import Path
from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, Output, OutputOption, tools_of


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("run", epilog=EXIT_CODES)(run)
    app.command("replay", epilog=EXIT_CODES)(replay)


def run(
    context: typer.Context,
    trace: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="philly, itp/cluster01, muri/trace1, openb or another below --trace-dir; or a file.",
            show_default=False,
        ),
    ],
    trace_dir: Annotated[str, typer.Option(metavar="DIR", help="Where named traces are.", envvar="PHALANX_TRACES")] = "",
    cluster: Annotated[
        str,
        typer.Option(
            metavar="TEXT|FILE", help="'H100:8x64' for 64 nodes of 8, several with commas, or YAML.  [default: fits the trace]"
        ),
    ] = "",
    policy: Annotated[
        str, typer.Option(metavar="FILE", help="YAML with queues, quotas and the rest.  [default: the empty policy]")
    ] = "",
    limit: Annotated[int | None, typer.Option(help="Only the jobs that were submitted first.", min=1)] = None,
    start: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="When the first job is submitted, in UTC.  [default: as the trace says, else 2023-11-14T22:13:20Z]"
        ),
    ] = "",
    limits: Annotated[
        str, typer.Option(help="What jobs say of their run time: trace, none, exact, factor:1.5, or estimate from finished ones.")
    ] = "trace",
    interval: Annotated[str, typer.Option(help="Time between two decisions.")] = "10s",
    startup: Annotated[str, typer.Option(help="Part of a job's duration that is its start.")] = "30s",
    restart: Annotated[str, typer.Option(help="What a later start costs on top.")] = "1m",
    checkpoint: Annotated[str, typer.Option(help="Time between two checkpoints.")] = "30m",
    failures: Annotated[str, typer.Option(help="Mean time between failures of one node, such as 30d.", show_default="none")] = "",
    seed: Annotated[int, typer.Option(help="Of the failures.")] = 0,
    through_control: Annotated[
        bool, typer.Option("--through-control", help="Drive the whole control plane with simulated agents: slow, for small traces.")
    ] = False,
    report: Annotated[str, typer.Option(metavar="FILE", help="Write an HTML page with plots there.")] = "",
    jobs: Annotated[str, typer.Option(metavar="FILE", help="Write a CSV table there of when each job started and ended.")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay a trace of jobs on a simulated cluster.

    The scheduler is the real one; time, nodes and jobs are simulated. Shows utilisation, waits, fairness, evictions and where
    every device-second went.
    """
    from phalanx.core.sim_report import SimAsked, SimReport
    from phalanx.show.cli.counted import counted
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.sim_page import report_page

    asked = SimAsked(
        trace=trace, trace_dir=trace_dir, cluster=cluster, policy=policy, limit=limit, seed=seed, limits=limits, interval=interval,
        start=start, startup=startup, restart=restart, checkpoint=checkpoint, failures=failures, through_control=through_control,
        report=report, jobs=jobs,
    )  # fmt: skip
    with counted("jobs over") as progress:
        found = tools_of(context).simulate(asked, progress)
    emit(output, SimReport, found, lambda: report_page(found))


def replay(
    context: typer.Context,
    snapshot: Annotated[Path, typer.Argument(metavar="SNAPSHOT", help="A saved snapshot.", show_default=False)],
    policy: Annotated[Path, typer.Option(metavar="FILE", help="YAML with the other policy.", show_default=False)],
    output: OutputOption = Output.TABLE,
) -> None:
    """Decide a saved snapshot under another policy.

    Shows who gains and who loses: starts, waits, evictions, and what each queue would hold.
    """
    from phalanx.core.sim_report import WhatIfView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.sim_page import what_if_page

    found = tools_of(context).what_if(str(snapshot), str(policy))
    emit(output, WhatIfView, found, lambda: what_if_page(found))
