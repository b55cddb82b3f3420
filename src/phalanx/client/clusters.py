"""Several control planes, asked the same: each one's plan for a job. Who does not answer is named, and the others are heard."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from phalanx.client.address import address_of
from phalanx.client.api import Client
from phalanx.core.clusters import Answer, Cluster, Clusters
from phalanx.core.errors import Bug, UserError, WorldError
from phalanx.core.spec import JobSpec

ANSWER_S_MAX: Final = 10.0
"""A plan takes as long as a decision; whoever needs more is left out."""

_THREADS_MAX: Final = 16


def connect_to(cluster: Cluster) -> Client:
    """A client of that platform. Raises ServerUnreachable when that of a home was never started, SetupError."""
    find = address_of(cluster)
    first = find()
    return Client(first.url, first.token, relocate=lambda: ((found := find()).url, found.token))


def ask(clusters: Clusters, names: Sequence[str], spec: JobSpec | Mapping[str, Any]) -> tuple[Answer, ...]:
    """What each of the named clusters says of the job, in the order of `names`. Nothing is submitted. All are asked at once."""
    with ThreadPoolExecutor(min(len(names), _THREADS_MAX) or 1, thread_name_prefix="clusters") as threads:
        return tuple(threads.map(lambda name: _ask(name, clusters.clusters[name], spec), names))


def _ask(name: str, cluster: Cluster, spec: JobSpec | Mapping[str, Any]) -> Answer:
    try:
        with connect_to(cluster) as client:
            client.hurry(ANSWER_S_MAX)
            return Answer(name, client.plan(spec))
    except (WorldError, Bug) as error:  # a bug of that server is no reason not to go to another
        return Answer(name, None, error.sentence().partition("; ")[0], away=True)  # what to do is said of one's own platform
    except UserError as error:
        return Answer(name, None, error.sentence())
