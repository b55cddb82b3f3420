"""Asking a server that may be away for a while, and telling the person who waits, once each time."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from phalanx.client import Client

T = TypeVar("T")
PATIENCE_S: Final = 300.0
"""How long a server may be away before a follower gives up: the ranks go on without it, so looking away early helps nobody."""


def patiently(client: "Client", say: Callable[[str], None], call: Callable[[], T]) -> T:
    """The answer of `call`, which must be safe to repeat. Raises WorldError once the server was away for PATIENCE_S."""
    told: list[float] = []

    def away(seconds: float) -> None:
        if not told:
            say("The server does not answer; the ranks go on without it. Waiting for it (`phalanx up` starts it).")
        told.append(seconds)

    answer = client.patient(call, PATIENCE_S, away)
    if told:
        say("The server is back.")
    return answer
