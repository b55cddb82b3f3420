"""node ls, node describe, node drain, node undrain."""

from typing import Annotated

import typer

from phalanx.show.cli.options import EXIT_CODES, HomeOption, NodeArgument, Output, OutputOption


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    for command in (ls, describe, drain, undrain):
        app.command(command.__name__, epilog=EXIT_CODES)(command)


def ls(home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """List nodes.

    State, devices held of all, what the agent can do, address, when it was heard last, and why it is drained.
    """
    from phalanx.client import connect
    from phalanx.core.views import NodeView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.pages import nodes_page

    with connect(home) as client:
        nodes = client.nodes()
    emit(output, tuple[NodeView, ...], nodes, lambda: nodes_page(nodes))


def describe(node: NodeArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show one node.

    Its devices, what its agent can do, and what its machine allows for keeping jobs apart.
    """
    from phalanx.client import connect
    from phalanx.core.errors import NotFound
    from phalanx.core.views import NodeView
    from phalanx.show.cli.output import emit
    from phalanx.show.cli.pages import node_page

    with connect(home) as client:
        found = next((one for one in client.nodes() if one.node == node), None)
    if found is None:
        raise NotFound("node", node, "is not known here; `phalanx node ls` lists those that are")
    view = found
    emit(output, NodeView, view, lambda: node_page(view))


def drain(
    node: NodeArgument,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at the node; 1 to 500 characters.")] = "no reason given",
    now: Annotated[
        bool, typer.Option("--now", help="Stop what runs there: it starts again elsewhere and uses up no restart.")
    ] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Place nothing new on a node.

    Jobs that run there go on to their end, unless --now. The node stays drained until `phalanx node undrain`, whatever restarts.
    """
    from phalanx.client import connect

    with connect(home) as client:
        _show(client.drain(node, reason, now), output)


def undrain(node: NodeArgument, home: HomeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Let a node be given work again."""
    from phalanx.client import connect

    with connect(home) as client:
        _show(client.undrain(node), output)


def _show(view: object, output: Output) -> None:
    from phalanx.core.views import NodeView
    from phalanx.show.cli.output import emit, line
    from phalanx.show.cli.pages import drained_text

    assert isinstance(view, NodeView)
    emit(output, NodeView, view, lambda: [line(drained_text(view))])
