"""How a gang goes from one generation to the next. Pure: `advance(state, event, now) -> (state, actions)`.

Every fault of a member (its death, its hang, a group that broke) leads to a new generation, or to the end of the gang, in a bounded
number of events:

    Gathering -> Forming -> Training -> Resting     a fault leads back to Gathering, as does a rest,
                                                    and anything that cannot be mended leads to Over
"""

from dataclasses import replace

from phalanx.operate.agent.gang.events import (
    Beat,
    Died,
    Dismiss,
    Event,
    Finished,
    Here,
    NodeLost,
    OfMember,
    Settled,
    Ticked,
)
from phalanx.operate.agent.gang.lateness import in_time
from phalanx.operate.agent.gang.moves import Moved, change, failed, gather, go_on, over, reopen, struck, too_often
from phalanx.operate.agent.gang.state import SPARE_FAILURES_MAX, Forming, Gathering, Member, Over, Resting, Slot, State, Training


def advance(state: State, event: Event, now_ms: int) -> Moved:
    """The only way a gang changes. Total: what comes too late, or of nobody known, changes nothing."""
    if isinstance(state.phase, Over):
        return _without(state, event), ()
    match event:
        case Ticked():
            return in_time(state, now_ms)
        case NodeLost(node, why):
            return _node_lost(state, node, f"node {node} {why}", now_ms)
    return _of_member(state, event, now_ms) if event.member in state.members else (state, ())


def _of_member(state: State, event: OfMember, now_ms: int) -> Moved:
    match event:
        case Here(number, after):
            return _came(state, number, after, now_ms)
        case Settled(number, generation):
            return _settled(state, number, generation, now_ms)
        case Beat(number, step, mark):
            return _beat(state, number, step, mark, now_ms)
        case Died(number, how, replaceable):
            return _died(state, number, how, replaceable, now_ms)
        case Finished(number):
            return _finished(state, number, now_ms)


def _without(state: State, event: Event) -> State:
    """After the end only deaths are noted."""
    if not isinstance(event, Died | Finished):
        return state
    return replace(state, members={number: member for number, member in state.members.items() if number != event.member})


def _node_lost(state: State, node: int, why: str, now_ms: int) -> Moved:
    """All its slots are empty at once. One whose ranks have all done what there was to do is no loss."""
    there = [member for member in state.holders.values() if member.node == node]
    if node in state.gone or (state.finished and not there):
        return state, ()
    left = {number: member for number, member in state.members.items() if member.node != node}
    best = max([state.best_step, *(member.step for member in there)])
    state = replace(state, members=left, gone=state.gone | {node}, best_step=best)
    if state.generation == 0:
        return over(state, f"{why} before the gang had formed", interrupted=True)
    if isinstance(state.phase, Gathering):
        return go_on(replace(state, phase=_with_fault(state.phase, why)), now_ms)
    if any(member.rank is not None for member in there):
        return reopen(state, why, now_ms, of_node=True)
    return go_on(state, now_ms)


def _came(state: State, number: int, after: int, now_ms: int) -> Moved:
    """Only who is out of the present generation is here: a word about an older one comes too late."""
    member = state.members[number]
    if after != state.generation and member.rank is not None:
        return state, ()
    state = change(state, number, here=True, heard_ms=now_ms, moved_ms=now_ms)
    if member.rank is None or isinstance(state.phase, Gathering):
        return go_on(state, now_ms)
    if isinstance(state.phase, Resting):
        left, actions = gather(state, state.phase.why, now_ms, planned=True)
    else:
        left, actions = reopen(state, f"rank {member.slot} lost its peers", now_ms)
    if isinstance(left.phase, Over):
        return left, actions
    moved, more = go_on(change(left, number, here=True), now_ms)
    return moved, (*actions, *more)


def _settled(state: State, number: int, generation: int, now_ms: int) -> Moved:
    if generation != state.generation or not isinstance(state.phase, Forming) or state.members[number].rank is None:
        return state, ()
    state = change(state, number, settled=True, heard_ms=now_ms, moved_ms=now_ms)
    if not all(member.settled for member in state.ranks.values()):
        return state, ()
    members = {other: replace(member, moved_ms=now_ms, heard_ms=now_ms) for other, member in state.members.items()}
    return go_on(replace(state, phase=Training(now_ms, now_ms), members=members, spare_failures=0), now_ms)


def _beat(state: State, number: int, step: int, mark: int, now_ms: int) -> Moved:
    """A step beyond all that was reached before, by everybody, and the gang is sound again."""
    member = state.members[number]
    moved_ms = now_ms if (step, mark) != (member.step, member.mark) else member.moved_ms
    state = change(state, number, step=step, mark=mark, heard_ms=now_ms, moved_ms=moved_ms)
    if not isinstance(state.phase, Training) or state.proven or not _is_further(state):
        return state, ()
    held = {member.slot for member in state.ranks.values()}
    slots = tuple(Slot() if number in held else slot for number, slot in enumerate(state.slots))
    return go_on(replace(state, failures=0, proven=True, slots=slots), now_ms)


def _is_further(state: State) -> bool:
    return min((member.step for member in state.ranks.values()), default=0) > state.best_step


def _died(state: State, number: int, how: str, replaceable: bool, now_ms: int) -> Moved:
    member = state.members[number]
    left = replace(state, members={other: one for other, one in state.members.items() if other != number})
    if member.slot is None:
        return go_on(_spare_failed(left, now_ms), now_ms)
    why = f"rank {member.slot} {how}"
    if not replaceable:
        return over(left, why)
    if state.generation == 0:
        return over(left, f"{why} before the gang had formed")
    left = struck(left, member, now_ms)
    if isinstance(state.phase, Gathering):
        return _died_gathering(left, member, why, now_ms)
    if member.rank is None:
        return go_on(left, now_ms)
    return reopen(replace(left, best_step=max(left.best_step, member.step)), why, now_ms)


def _spare_failed(state: State, now_ms: int) -> State:
    failures = state.spare_failures + 1
    after_ms = now_ms + state.rules.timeouts.spare_ms if failures >= SPARE_FAILURES_MAX else state.spares_after_ms
    return replace(state, spare_failures=failures, spares_after_ms=after_ms)


def _died_gathering(left: State, member: Member, why: str, now_ms: int) -> Moved:
    """Those of the last generation can each die once; one that was to take a place in the next is a failure more."""
    phase = left.phase
    assert isinstance(phase, Gathering)
    if member.started_ms > phase.since_ms or not member.settled:
        counted = failed(left, why)
        if counted is None:
            return over(left, too_often(why))
        left = counted
    best = max(left.best_step, member.step)
    return go_on(replace(left, best_step=best, phase=_with_fault(phase, why)), now_ms)


def _with_fault(phase: Gathering, why: str) -> Gathering:
    return replace(phase, why=f"{phase.why}; {why}", planned=False)


def _finished(state: State, number: int, now_ms: int) -> Moved:
    """A gang whose first rank has finished has no step left after which it could come out to grow."""
    members = {other: member for other, member in state.members.items() if other != number}
    state = replace(state, members=members, finished=True)
    if isinstance(state.phase, Resting):
        state = replace(state, phase=Training(now_ms, now_ms))
    return state, (() if state.ranks else (Dismiss(tuple(sorted(members))),))
