"""One job and several clusters: their offers, and the choice. What `plan --clusters` and `submit --clusters` share."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.core.errors import ServerUnreachable, SpecError

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.core.clusters import Clusters, DispatchView
    from phalanx.core.spec import JobSpec
    from phalanx.show.cli.tools import Tools

ClustersOption = Annotated[
    str | None,
    typer.Option(
        "--clusters",
        metavar="NAMES",
        help="Ask these clusters of the home's clusters.yaml, such as lab,cloud, or all; the best one is chosen.",
        show_default=False,
    ),
]


def offers(tools: "Tools", spec: "JobSpec", clusters: "Clusters", asked: str) -> "DispatchView":
    """What each of those clusters offers that were `asked` for. Raises SpecError for one that the file does not have."""
    from phalanx.client.clusters import ask
    from phalanx.core.clusters_parse import chosen

    names = chosen(clusters, asked)
    if spec.after and len(names) > 1:
        raise SpecError(
            "after", ", ".join(spec.after), "is of one cluster, where others may have jobs of that name: ask that one alone"
        )
    answers = ask(clusters, names, spec)
    return tools.choose(spec, clusters, answers, time.time_ns() // 1_000_000)


def client_of(view: "DispatchView", clusters: "Clusters", asked: str) -> "Client":
    """Of the cluster that was chosen. Raises SpecError when none takes the job, ServerUnreachable when none answered."""
    from phalanx.client.clusters import connect_to

    if view.chosen is None:
        said = "; ".join(f"{offer.cluster}: {offer.sentence}" for offer in view.offers)
        if all(offer.verdict == "away" for offer in view.offers):
            raise ServerUnreachable(f"none of the clusters answers: {said}")
        raise SpecError("--clusters", asked, f"none of them takes the job: {said}")
    return connect_to(view.chosen, clusters.clusters[view.chosen])
