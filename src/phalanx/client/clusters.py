"""Several control planes, asked the same: each one's plan for a job. Who does not answer is named, and the others are heard."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from threading import Thread
from typing import Any, Final

from phalanx.client.address import address_of
from phalanx.client.api import Client
from phalanx.core.clusters import Answer, Cluster, Clusters
from phalanx.core.errors import Bug, UserError, WorldError
from phalanx.core.spec import JobSpec

ANSWER_S_MAX: Final = 10.0
"""A plan takes as long as a decision; whoever needs more is left out."""


def connect_to(name: str, cluster: Cluster) -> Client:
    """A client of that platform. Raises ServerUnreachable when that of a home was never started, SetupError."""
    find = address_of(name, cluster)
    first = find()
    return Client(first.url, first.token, relocate=lambda: ((found := find()).url, found.token))


def ask(
    clusters: Clusters, names: Sequence[str], spec: JobSpec | Mapping[str, Any], within_s: float = ANSWER_S_MAX
) -> tuple[Answer, ...]:
    """What each of the named clusters says of the job, in the order of `names`. Nothing is submitted. All are asked at once; whose
    answer is not there after `within_s` is away, be it that it is on its way."""
    asked = {name: _on_thread(partial(_ask, name, clusters.clusters[name], spec, within_s)) for name in names}
    wait_for(asked.values(), within_s)
    return tuple(
        future.result() if future.done() else _late(name, clusters.clusters[name], within_s) for name, future in asked.items()
    )


def _on_thread(call: Callable[[], Answer]) -> Future[Answer]:
    """On a thread that ends with the process: an executor's would hold it up for as long as somebody else's server likes."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 (who waits for the answer raises it)
            future.set_exception(error)

    Thread(target=run, name="clusters", daemon=True).start()
    return future


def _ask(name: str, cluster: Cluster, spec: JobSpec | Mapping[str, Any], within_s: float) -> Answer:
    try:
        with connect_to(name, cluster) as client:
            client.hurry(within_s)
            return Answer(name, client.plan(spec))
    except (WorldError, Bug) as error:  # a bug of that server is no reason not to go to another
        sentence = error.sentence()
        return Answer(name, None, sentence.rpartition("; ")[0] or sentence, away=True)  # what to do is said of one's own platform
    except UserError as error:
        return Answer(name, None, error.sentence())


def _late(name: str, cluster: Cluster, within_s: float) -> Answer:
    return Answer(name, None, f"{cluster.url or cluster.home} did not answer in {within_s:g} s", away=True)
