"""Sends commands over the links that are open, and does not repeat itself at every tick."""

from collections.abc import Collection, Mapping, Sequence

from phalanx.core.errors import LinkDown
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import Command, PlanFaults, RequestTraces, StartRanks
from phalanx.core.trace_request import TraceRequest
from phalanx.operate.control.ports import Links

_About = tuple[NodeId, AttemptId, str]


class Dispatch:
    """What was sent lately. Commands are wanted until the node's reports show their effect, so each is sent again after
    `resend_ms`, and at once over a new connection: what went over the old one may never have arrived."""

    def __init__(self, links: Links, resend_ms: int) -> None:
        self._links = links
        self._resend_ms = resend_ms
        self._sent: dict[_About, int] = {}

    def send(self, wanted: Mapping[NodeId, Sequence[Command]], monotonic_ms: int) -> list[tuple[NodeId, Command]]:
        """Sends what is due, and answers with it; a link that is down gets it with a later tick."""
        current = {_about(node, command) for node, commands in wanted.items() for command in commands}
        self._sent = {about: sent_ms for about, sent_ms in self._sent.items() if about in current}
        sent: list[tuple[NodeId, Command]] = []
        for node, commands in wanted.items():
            due = [command for command in commands if self._is_due(_about(node, command), monotonic_ms)]
            if due and self._is_sent(node, due):
                self._sent.update({_about(node, command): monotonic_ms for command in due})
                sent += [(node, command) for command in due]
        return sent

    def forget(self, nodes: Collection[NodeId]) -> None:
        """These nodes have a new connection."""
        self._sent = {about: sent_ms for about, sent_ms in self._sent.items() if about[0] not in nodes}

    def _is_due(self, about: _About, monotonic_ms: int) -> bool:
        sent_ms = self._sent.get(about)
        return sent_ms is None or monotonic_ms - sent_ms >= self._resend_ms

    def _is_sent(self, node: NodeId, commands: Sequence[Command]) -> bool:
        link = self._links.get(node)
        if link is None:
            return False
        try:
            link.send(commands)
        except LinkDown:
            return False
        return True


def _about(node: NodeId, command: Command) -> _About:
    attempt = command.launch.attempt if isinstance(command, StartRanks) else command.attempt
    match command:
        case PlanFaults(last=number) | RequestTraces(request=TraceRequest(number=number)):
            return node, attempt, f"{command.kind} {number}"
        case _:
            return node, attempt, command.kind
