"""Joins the gang's state to the world: sockets and the shim's hands. Thin: what to do is decided in `advance`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from phalanx.core import timeouts
from phalanx.core.gang_wire import Frame
from phalanx.operate.agent.gang.advance import advance
from phalanx.operate.agent.gang.events import (
    Action,
    Beat,
    Died,
    Dismiss,
    End,
    Event,
    Finished,
    Go,
    Here,
    Kill,
    Leave,
    NodeLost,
    Rest,
    Settled,
    Start,
    Ticked,
)
from phalanx.operate.agent.gang.lateness import next_moment
from phalanx.operate.agent.gang.lead import Hands, Peers
from phalanx.operate.agent.gang.state import Over, Rules, State, first
from phalanx.operate.agent.gang.values import Values

TICKS_MAX: Final = 64
"""Of one turn; each changes something, so what is left is due again at once."""


class Coordinator:
    """One gang's. Belongs to the shim's thread: `turn` after every wait, `next_moment` before one. Times are on CLOCK_BOOTTIME."""

    def __init__(self, order: Mapping[str, Any], world_size: int, peers: Peers, hands: Hands, now_ms: int) -> None:
        rules = Rules(
            world_size=world_size,
            spares=order["spares"],
            timeouts=timeouts.from_dict(order["timeouts"]),
            nodes=tuple(order.get("nodes", ())),
            sizes=tuple(order.get("sizes", ())),
        )
        self._state: State = first(rules, now_ms)
        self._values = Values()
        self._peers = peers
        self._hands = hands
        self._now_ms = now_ms
        self._path = Path(order["socket"])
        self._grace_ms = order["grace_ms"]
        self._placed = dict(enumerate(range(world_size)))  # member -> slot that it was told it has

    def open(self) -> None:
        self._peers.open(self._path)

    def close(self) -> None:
        self._peers.close()

    def heard(self, peer: Any, frame: Frame) -> None:
        """One frame of a connection. Raises ValueError for nonsense, on which it is hung up."""
        if peer.channel == "store":
            answer = self._values.ask(peer, frame, self._now_ms)
            if answer is not None:
                self._peers.say(peer, answer)
            return
        event = _event(peer.member, frame.head)
        if isinstance(event, Here) and peer.member in self._state.members and peer.member not in self._state.holders:
            self._hands.note(f"process {peer.member} of the gang is ready")
        if event is not None:
            self._move(event)

    def left(self, peer: Any) -> None:
        self._values.forget(peer)

    def died(self, member: int, how: str, replaceable: bool, now_ms: int) -> None:
        self._now_ms = now_ms
        self._move(Died(member, how, replaceable))

    def finished(self, member: int) -> None:
        self._move(Finished(member))

    def node_lost(self, node: int, why: str, now_ms: int) -> None:
        self._now_ms = now_ms
        self._move(NodeLost(node, why))

    def without(self) -> tuple[int, ...] | None:
        """The nodes without which the gang goes on; None when it does not go on."""
        return None if isinstance(self._state.phase, Over) else tuple(sorted(self._state.gone))

    def turn(self, now_ms: int) -> None:
        """What is due by now. Frames that are heard before the next turn count as heard now."""
        self._now_ms = now_ms
        for _ in range(TICKS_MAX):
            moment = next_moment(self._state)
            if moment is None or moment > now_ms:
                break
            self._move(Ticked())
        for peer, answer in self._values.settled(now_ms):
            self._peers.say(peer, answer)

    def next_moment(self) -> int | None:
        moments = [next_moment(self._state), self._values.next_moment()]
        return min((moment for moment in moments if moment is not None), default=None)

    def _move(self, event: Event) -> None:
        self._state, actions = advance(self._state, event, self._now_ms)
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Start(member, node):
                if not self._hands.start_spare(member, node):
                    self._move(Died(member, "could not be started"))
            case Kill(member, why):
                self._hands.note(f"process {member} of the gang is killed: {why}")
                self._hands.kill(member, why)
            case Leave(generation, why):
                self._hands.note(f"generation {generation} is over: {why}")
                self._tell_all(Frame({"say": "over", "generation": generation, "why": why}))
            case Rest(generation, why):
                self._hands.note(f"generation {generation} is asked to come out after a step: {why}")
                self._tell_all(Frame({"say": "rest", "generation": generation, "why": why}))
            case Go():
                self._go(action)
            case Dismiss(members):
                self._hands.dismiss(members)
            case End(why, interrupted):
                self._hands.note(f"the gang ends: {why}")
                self._hands.end_gang(why, interrupted, self._grace_ms)

    def _go(self, go: Go) -> None:
        self._hands.note(f"generation {go.generation} starts with processes {', '.join(map(str, go.members))}")
        self._values.drop(f"{prefix_of(go.generation - 1)}/")
        peers = {peer.member: peer for peer in self._peers.members()}
        # A whole gang's are its ranks: of 1,024 they would be 5 KB for each of them.
        slots = {} if go.slots == tuple(range(len(go.slots))) else {"slots": list(go.slots)}
        for rank, (member, slot) in enumerate(zip(go.members, go.slots, strict=True)):
            told = {"say": "go", "generation": go.generation, "rank": rank, "world_size": len(go.members)}
            told |= {**slots, "num_slots": self._state.rules.world_size}
            told |= {"why": go.why, "since_ms": go.since_ms, "planned": go.planned, "prefix": prefix_of(go.generation)}
            if self._placed.get(member) != slot:
                self._placed[member] = slot
                told["place"] = dict(self._hands.place(member, slot))
            if member in peers:
                self._peers.say(peers[member], Frame(told))

    def _tell_all(self, frame: Frame) -> None:
        for peer in self._peers.members():
            if peer.member in self._state.ranks:
                self._peers.say(peer, frame)


def prefix_of(generation: int) -> str:
    """Of a generation's keys in the store."""
    return f"generation-{generation}"


def _event(member: int, head: Mapping[str, Any]) -> Event | None:
    """None for what a newer rank may say."""
    match head:
        case {"do": "here", "after": int(after)}:
            return Here(member, after)
        case {"do": "settled", "generation": int(generation)}:
            return Settled(member, generation)
        case {"do": "beat", "step": int(step), "mark": int(mark)}:
            return Beat(member, step, mark)
    return None
