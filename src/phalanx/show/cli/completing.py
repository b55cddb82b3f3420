"""Names that the shell completes: of jobs and nodes, from a server that answers at once. Any trouble means no names, silently.

Imported with the commands, so it imports next to nothing; and what a server says is put into a shell, so only plain names pass.
"""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from phalanx.client import Client

ANSWER_S_MAX: Final = 0.3
JOBS_MAX: Final = 200
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def job_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of jobs that begin so, newest first."""
    return _names(ctx, incomplete, lambda client: (job.id for job in client.jobs(limit=JOBS_MAX)))


def node_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of nodes that begin so."""
    return _names(ctx, incomplete, lambda client: (node.node for node in client.nodes()))


def _names(ctx: typer.Context, incomplete: str, ask: "Callable[[Client], Iterable[str]]") -> list[str]:
    try:
        from phalanx.client import connect

        with connect(ctx.params.get("home")) as client:
            client.hurry(ANSWER_S_MAX)
            return [name for name in ask(client) if name.startswith(incomplete) and _PLAIN.fullmatch(name)]
    except Exception:  # noqa: BLE001 (a shell that completes a word must not be told about anything)
        return []
