"""A gang's processes on another node than the coordinator's: what they say goes to it, and what it says is done here.

Ranks speak to their own shim alone, so that a connection between two nodes that breaks for a moment is nothing to them: the shims
make it again and lose nothing (`session`). Where the coordinator is not heard of for `node_ms` this node is out of the gang, as the
coordinator knows by then too, and its ranks are ended.
"""

import selectors
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from phalanx.core.gang_wire import Frame, node_hello
from phalanx.core.timeouts import Timeouts
from phalanx.operate.agent import boottime
from phalanx.operate.agent.gang.dialling import Dialling
from phalanx.operate.agent.gang.doorway import Doorway, Peer
from phalanx.operate.agent.gang.lead import Hands
from phalanx.operate.agent.gang.nodes import unreached
from phalanx.operate.agent.gang.session import Session

REFUSALS_MAX: Final = 40
"""Times that the coordinator's shim takes the connection and hangs up at the hello, one after another: it has another token."""


class Relay:
    """Leads this node's part of the gang for a coordinator elsewhere. Belongs to the shim's thread."""

    def __init__(self, selector: selectors.BaseSelector, order: Mapping[str, Any], timeouts: Timeouts, hands: Hands) -> None:
        self._node: int = order["node"]
        self._token: str = order["node_token"]
        self._timeouts = timeouts
        self._hands = hands
        self._session = Session()
        self._grace_ms: int = order["grace_ms"]
        self._address: tuple[str, int] = (order["host"], order["port"])
        self._dialling = Dialling(selector, self._address, self._up, self._take, self._down)
        self._doorway = Doorway(selector, order["token"], self._heard, self._left, order.get("uid"))
        self._path = Path(order["socket"])
        self._peers: dict[int, Peer] = {}
        self._numbers: dict[Peer, int] = {}
        self._next_number = 0
        self._places: dict[int, dict[str, Any]] = {}  # of members that will hear of it with their next `go`
        self._heard_ms: int | None = None  # None until the coordinator was first reached
        self._meet_until_ms = boottime.now_ms() + timeouts.unmet_ms
        self._beat_ms = 0
        self._up_ms = 0
        self._greeted = False  # whether this connection's hello was answered
        self._refusals = 0
        self._is_out = False
        self._is_done = False

    def start(self) -> None:
        """Raises OSError."""
        self._doorway.open(self._path)

    def stop(self) -> None:
        self._doorway.close()
        self._dialling.close()

    def died(self, member: int, how: str, replaceable: bool) -> None:
        self._send(Frame({"do": "died", "member": member, "how": how, "replaceable": replaceable}))

    def finished(self, member: int) -> None:
        self._send(Frame({"do": "finished", "member": member}))

    def hold(self, member: int) -> None:
        self._doorway.hold(member)

    def release(self, member: int) -> None:
        self._doorway.release(member)

    def told(self, grace_ms: int) -> None:
        """This node's ranks are being ended; their ends are said as any."""

    def lose(self, node: int) -> None:
        """The coordinator's shim is the one to know."""

    def all_started(self) -> None:
        """Likewise; until it was first reached it is dialled for `unmet_ms`, as its node may take long to start it."""

    def alone(self) -> None:
        if not self._is_done:
            self._is_done = True
            self._send(Frame({"do": "done"}))

    def busy(self) -> bool:
        """Whether the coordinator has still to hear how processes here have ended. It may be gone: then that is bounded."""
        return self._heard_ms is not None and not self._is_out and not self._session.is_heard

    def turn(self, now_ms: int) -> None:
        if self._is_out:
            return
        if self._refusals >= REFUSALS_MAX:
            self._leave("its gang's coordinator does not let it in")
            return
        self._dialling.turn(now_ms)
        if self._dialling.is_up and now_ms >= self._silent_ms():
            self._dialling.hang_up()
        if self._heard_ms is None:
            if now_ms >= self._meet_until_ms:
                self._leave(f"it never reached {unreached(*self._address, self._timeouts.unmet_ms)}")
            return
        if now_ms >= self._heard_ms + self._timeouts.node_ms:
            self._leave(f"its gang's coordinator was not heard of for {(now_ms - self._heard_ms) / 1000:.1f} s")
        elif self._greeted and now_ms >= self._beat_ms + self._timeouts.beat_ms:
            self._beat_ms = now_ms
            self._dialling.say(self._session.beat())

    def next_moment(self) -> int | None:
        if self._is_out:
            return None
        moments = [self._dialling.next_moment()]
        if self._dialling.is_up:
            moments += [self._silent_ms(), self._beat_ms + self._timeouts.beat_ms if self._greeted else None]
        moments.append(self._meet_until_ms if self._heard_ms is None else self._heard_ms + self._timeouts.node_ms)
        return min((moment for moment in moments if moment is not None), default=None)

    def _silent_ms(self) -> int:
        """When this connection counts as broken, if nothing is heard before."""
        return max(self._up_ms, self._heard_ms or 0) + self._timeouts.silent_ms

    def _leave(self, why: str) -> None:
        """No word of this gang is for us any more. The generation that its ranks are in is over: they commit nothing, and end."""
        self._is_out = True
        self._dialling.close()
        for peer in self._doorway.members():
            self._doorway.say(peer, Frame({"say": "over", "generation": 0, "why": why}))
        self._hands.end_gang(why, True, self._grace_ms)

    def _up(self) -> None:
        self._greeted, self._up_ms = False, boottime.now_ms()
        self._dialling.say(node_hello(self._token, self._node, self._session.got))

    def _down(self) -> None:
        self._refusals = 0 if self._greeted else self._refusals + 1
        self._greeted = False

    def _send(self, frame: Frame) -> None:
        if self._is_out:
            return
        try:
            numbered = self._session.number(frame)
        except OverflowError as error:
            self._leave(f"its gang's coordinator takes nothing any more: {error}")
            return
        if self._greeted:
            self._dialling.say(numbered)

    def _take(self, frame: Frame) -> None:
        """Raises ValueError for nonsense."""
        if self._is_out:
            return
        self._heard_ms = boottime.now_ms()
        match frame.head:
            case {"refused": str(why)} if not self._greeted:
                self._leave(why)
            case {"got": int(got)} if not self._greeted:
                missed, self._greeted = self._session.resume(got), True
                for one in missed:
                    self._dialling.say(one)
            case _:
                said = self._session.take(frame)
                if said is not None:
                    _DOES.get(str(said.head.get("do")), Relay._ignore)(self, said)

    def _heard(self, peer: Peer, frame: Frame) -> None:
        if peer not in self._numbers:
            self._next_number += 1
            self._numbers[peer], self._peers[self._next_number] = self._next_number, peer
            came = {"do": "peer", "peer": self._next_number, "member": peer.member, "channel": peer.channel}
            self._send(Frame(came))
        self._send(Frame({"do": "said", "peer": self._numbers[peer], "head": dict(frame.head)}, frame.parts))

    def _left(self, peer: Peer) -> None:
        number = self._numbers.pop(peer, None)
        if number is not None:
            del self._peers[number]
            self._send(Frame({"do": "left", "peer": number}))

    def _tell(self, said: Frame) -> None:
        match said.head:
            case {"peer": int(number), "head": dict(head)} if number in self._peers:
                peer = self._peers[number]
                if head.get("say") == "go" and peer.member in self._places:
                    head = {**head, "place": self._places.pop(peer.member)}
                self._doorway.say(peer, Frame(head, said.parts))

    def _hang_up(self, said: Frame) -> None:
        peer = self._peers.get(_whole(said, "peer"))
        if peer is not None:
            self._doorway.hang_up(peer)

    def _start(self, said: Frame) -> None:
        member = _whole(said, "member")
        if not self._hands.start_spare(member, self._node):
            self.died(member, "could not be started", True)

    def _kill(self, said: Frame) -> None:
        member, why = _whole(said, "member"), str(said.head.get("why", ""))
        self._hands.note(f"process {member} of the gang is killed: {why}")
        self._hands.kill(member, why)

    def _place(self, said: Frame) -> None:
        member = _whole(said, "member")
        self._places[member] = dict(self._hands.place(member, _whole(said, "slot")))

    def _dismiss(self, said: Frame) -> None:
        members = said.head.get("members")
        if not isinstance(members, list) or not all(type(member) is int for member in members):
            raise ValueError("members must be a list of whole numbers")
        self._hands.dismiss(members)

    def _end(self, said: Frame) -> None:
        why = str(said.head.get("why", ""))
        self._hands.note(f"the gang ends: {why}")
        self._hands.end_gang(why, said.head.get("interrupted") is True, _whole(said, "grace_ms"))

    def _out(self, said: Frame) -> None:
        self._leave(str(said.head.get("why", "")))

    def _ignore(self, said: Frame) -> None:
        """What a newer shim may say."""


def _whole(said: Frame, name: str) -> int:
    value = said.head.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is no whole number")
    return value


_DOES: Final[Mapping[str, Callable[[Relay, Frame], None]]] = {
    "tell": Relay._tell,
    "hang_up": Relay._hang_up,
    "start": Relay._start,
    "kill": Relay._kill,
    "place": Relay._place,
    "dismiss": Relay._dismiss,
    "end": Relay._end,
    "out": Relay._out,
}
