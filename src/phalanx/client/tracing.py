"""Waiting for traces that a running job was asked for."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from phalanx.core.trace_request import TraceRequestView

if TYPE_CHECKING:
    from phalanx.client.api import Client

WRITTEN_S_MAX: Final = 900.0
"""From the last of the steps on: a trace is summed up in ten minutes or not at all, and then sent."""


def follow(client: "Client", asked: TraceRequestView, poll_s: float, patience_s: float) -> Iterator[TraceRequestView]:
    """See Client.follow_traces."""
    view, made_s = asked, None if asked.at_step < asked.last else client.now_s()
    while view.left and not view.ended:
        if made_s is not None and client.now_s() - made_s >= WRITTEN_S_MAX:
            return
        client.rest(poll_s)
        seen = client.patient(lambda: client.trace_request(asked.job, asked.attempt, asked.number), patience_s)
        if made_s is None and seen.at_step >= seen.last:
            made_s = client.now_s()
        if seen != view:
            yield seen
        view = seen
