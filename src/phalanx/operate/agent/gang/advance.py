"""How a gang goes from one generation to the next. Pure: `advance(state, event, now) -> (state, actions)`.

Every fault of a member (its death, its hang, a group that broke) leads to a new generation, or to the end of the gang, in a bounded
number of events:

    Gathering -> Forming -> Training      a fault in Forming or Training leads back to Gathering
                                          and anything that cannot be mended leads to Over

Who hangs is not easily seen, since everybody waits for the one that does: first those that give no sign of life (a stopped one),
then those whose main thread is behind the others', and where all stand at the same place, those that do not come out of their
generation when told to. What is killed is then heard of as dead.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from phalanx.operate.agent.gang.state import (
    FAILURES_MAX,
    SPARE_FAILURES_MAX,
    Action,
    Beat,
    Died,
    End,
    Event,
    Finished,
    Forming,
    Gathering,
    Go,
    Here,
    Kill,
    Leave,
    Member,
    NodeLost,
    OfMember,
    Over,
    Settled,
    Start,
    State,
    Ticked,
    Training,
)

Moved = tuple[State, tuple[Action, ...]]


def advance(state: State, event: Event, now_ms: int) -> Moved:
    """The only way a gang changes. Total: what comes too late, or of nobody known, changes nothing."""
    if isinstance(state.phase, Over):
        return _without(state, event), ()
    if isinstance(event, OfMember) and event.member not in state.members:
        return state, ()
    match event:
        case Here(number, after):
            return _came(state, number, after, now_ms)
        case Settled(number, generation):
            return _settled(state, number, generation, now_ms)
        case Beat(number, step, mark):
            return _beat(state, number, step, mark, now_ms), ()
        case Died(number, how, replaceable):
            return _died(state, number, how, replaceable, now_ms)
        case Finished(number):
            members = {other: member for other, member in state.members.items() if other != number}
            return replace(state, members=members, finished=True), ()
        case NodeLost(node, why):
            return _node_lost(state, node, why, now_ms)
        case Ticked():
            return _in_time(state, now_ms)


def next_moment(state: State) -> int | None:
    """When `Ticked` is due, if nothing happens before."""
    return min(_moments(state), default=None)


def _without(state: State, event: Event) -> State:
    """After the end only deaths are noted."""
    if not isinstance(event, Died | Finished):
        return state
    return replace(state, members={number: member for number, member in state.members.items() if number != event.member})


def _change(state: State, number: int, **changes: Any) -> State:
    return replace(state, members={**state.members, number: replace(state.members[number], **changes)})


def _over(state: State, why: str) -> Moved:
    return replace(state, phase=Over(why)), (End(why),)


def _came(state: State, number: int, after: int, now_ms: int) -> Moved:
    """Only who is out of the present generation is here: a word about an older one comes too late."""
    if after != state.generation and state.members[number].slot is not None:
        return state, ()
    state = _change(state, number, here=True, heard_ms=now_ms, moved_ms=now_ms)
    if state.members[number].slot is None:
        return _next(state, now_ms)
    if isinstance(state.phase, Gathering):
        return _next(state, now_ms)
    left, actions = _reopen(state, f"rank {state.members[number].slot} lost its peers", now_ms)
    return left if isinstance(left.phase, Over) else _change(left, number, here=True), actions


def _settled(state: State, number: int, generation: int, now_ms: int) -> Moved:
    if generation != state.generation or not isinstance(state.phase, Forming) or state.members[number].slot is None:
        return state, ()
    state = _change(state, number, settled=True, heard_ms=now_ms, moved_ms=now_ms)
    if not all(member.settled for member in state.holders.values()):
        return state, ()
    members = {other: replace(member, moved_ms=now_ms, heard_ms=now_ms) for other, member in state.members.items()}
    state = replace(state, phase=Training(), members=members, spare_failures=0)
    return _filled(state, now_ms, _spares(state))


def _beat(state: State, number: int, step: int, mark: int, now_ms: int) -> State:
    """A step beyond all that was reached before, by everybody, and the gang is sound again."""
    member = state.members[number]
    moved_ms = now_ms if (step, mark) != (member.step, member.mark) else member.moved_ms
    state = _change(state, number, step=step, mark=mark, heard_ms=now_ms, moved_ms=moved_ms)
    if isinstance(state.phase, Training) and state.failures and _furthest(state, min) > state.best_step:
        return replace(state, failures=0)
    return state


def _furthest(state: State, which: Callable[[Iterable[int]], int]) -> int:
    return which([member.step for member in state.holders.values()] or [0])


def _died(state: State, number: int, how: str, replaceable: bool, now_ms: int) -> Moved:
    member = state.members[number]
    left = replace(state, members={other: one for other, one in state.members.items() if other != number})
    if member.slot is None:
        return _next(replace(left, spare_failures=left.spare_failures + 1), now_ms)
    why = f"rank {member.slot} {how}"
    if not replaceable:
        return _over(left, why)
    if state.generation == 0:
        return _over(left, f"{why} before the gang had formed")
    if isinstance(state.phase, Gathering):
        return _died_gathering(left, member, why, now_ms)
    return _reopen(replace(left, best_step=max(left.best_step, member.step)), why, now_ms)


def _node_lost(state: State, node: int, why: str, now_ms: int) -> Moved:
    """All its slots are empty at once, and stay so. One whose ranks have all done what there was to do is no loss."""
    slots = [member.slot for member in state.holders.values() if member.node == node]
    if node in state.gone or not slots:
        return state, ()
    left = {number: member for number, member in state.members.items() if member.node != node}
    state = replace(state, members=left, gone=state.gone | {node})
    return _interrupted(state, f"node {node} {why}")


def _interrupted(state: State, why: str) -> Moved:
    return replace(state, phase=Over(why)), (End(why, interrupted=True),)


def _died_gathering(left: State, member: Member, why: str, now_ms: int) -> Moved:
    """Those of the last generation can each die once; one that was to take a place in the next is a failure more."""
    phase = left.phase
    assert isinstance(phase, Gathering)
    if member.started_ms > phase.since_ms or not member.settled:
        left = replace(left, failures=left.failures + 1)
        if left.failures > FAILURES_MAX:
            return _over(left, f"{why}, and {FAILURES_MAX} recoveries before it had failed")
    gathering = replace(phase, why=f"{phase.why}; {why}")
    return _next(replace(left, phase=gathering), now_ms)


def _reopen(state: State, why: str, now_ms: int) -> Moved:
    """The present generation is over."""
    if state.finished:
        return _over(state, f"{why} after another rank had finished")
    best = max(state.best_step, _furthest(state, max))
    state = replace(state, failures=state.failures + 1, best_step=best)
    if state.failures > FAILURES_MAX:
        return _over(state, f"{why}, and {FAILURES_MAX} recoveries before it had failed")
    members = {number: replace(member, here=member.here and member.slot is None) for number, member in state.members.items()}
    until_ms = now_ms + state.rules.timeouts.gather_ms
    moved, actions = _next(replace(state, members=members, phase=Gathering(until_ms, now_ms, why)), now_ms)
    return moved, (Leave(state.generation, why), *actions)


def _next(state: State, now_ms: int) -> Moved:
    """Fills slots, and starts the next generation when it can."""
    if not isinstance(state.phase, Gathering):
        return _filled(state, now_ms, _spares(state)) if isinstance(state.phase, Training) else (state, ())
    state = _assigned(state)
    state, actions = _filled(state, now_ms, Counter(state.rules.node_of(slot) for slot in state.empty_slots))
    if isinstance(state.phase, Over) or state.empty_slots:
        return state, actions
    if not all(member.here for member in state.holders.values()):
        return state, actions
    return _start(state, now_ms, actions)


def _start(state: State, now_ms: int, actions: tuple[Action, ...]) -> Moved:
    assert isinstance(state.phase, Gathering)
    generation, phase = state.generation + 1, state.phase
    members = {
        number: replace(member, here=member.slot is None and member.here, settled=False, moved_ms=now_ms)
        for number, member in state.members.items()
    }
    by_slot = tuple(sorted(state.holders, key=lambda number: state.members[number].slot or 0))
    until_ms = now_ms + state.rules.timeouts.form_ms if state.generation else None
    forming = Forming(until_ms, phase.since_ms, phase.why)
    state = replace(state, generation=generation, members=members, phase=forming)
    return state, (*actions, Go(generation, by_slot, phase.why, phase.since_ms))


def _spares(state: State) -> Mapping[int, int]:
    """How many each node holds beside a generation that trains."""
    return dict.fromkeys(state.rules.all_nodes, state.rules.spares)


def _assigned(state: State) -> State:
    """Empty slots get the spares that are here, oldest first, of their own node: there is the device, and there is the memory of
    what was lost. Before the first generation no slot is empty."""
    for slot in state.empty_slots:
        node = state.rules.node_of(slot)
        ready = [number for number, member in state.members.items() if _is_spare(member, node) and member.here]
        if ready:
            state = _change(state, min(ready), slot=slot)
    return state


def _is_spare(member: Member, node: int) -> bool:
    return member.slot is None and member.killed_ms is None and member.node == node


def _filled(state: State, now_ms: int, wanted: Mapping[int, int]) -> Moved:
    """Starts what is missing of the spares `wanted` by node. A gang that waits for one which cannot be started is over; others do
    without."""
    if state.finished:
        return state, ()
    held = Counter(node for node in wanted for member in state.members.values() if _is_spare(member, node))
    missing = [node for node in sorted(wanted) if node not in state.gone for _ in range(wanted[node] - held[node])]
    if missing and state.spare_failures >= SPARE_FAILURES_MAX:
        return _over(state, "no spare starts any more") if state.empty_slots else (state, ())
    actions: list[Action] = []
    for node in missing:
        number = state.next_member
        fresh = Member(slot=None, node=node, started_ms=now_ms, heard_ms=now_ms, moved_ms=now_ms)
        state = replace(state, members={**state.members, number: fresh}, next_member=number + 1)
        actions.append(Start(number, node))
    return state, tuple(actions)


def _in_time(state: State, now_ms: int) -> Moved:
    """What is due, one thing after another."""
    for number, member in state.members.items():
        if member.killed_ms is not None and now_ms >= member.killed_ms + state.rules.timeouts.kill_ms:
            return _over(state, f"process {number} of the gang was killed and does not end")
    late = [number for number, member in state.members.items() if _is_late_spare(state, member, now_ms)]
    if late:
        return _killed(state, late, "it did not start in time", now_ms)
    match state.phase:
        case Gathering(until_ms) if until_ms is not None and now_ms >= until_ms:
            return _gather_is_over(state, now_ms)
        case Forming(until_ms) if until_ms is not None and now_ms >= until_ms:
            return _form_is_over(state, now_ms)
        case Training():
            return _look_for_hangs(state, now_ms)
    return state, ()


def _is_late_spare(state: State, member: Member, now_ms: int) -> bool:
    fresh = member.slot is None and not member.here and member.killed_ms is None
    return fresh and now_ms >= member.started_ms + state.rules.timeouts.spare_ms


def _killed(state: State, numbers: Iterable[int], why: str, now_ms: int) -> Moved:
    numbers = [number for number in numbers if state.members[number].killed_ms is None]
    for number in numbers:
        state = _change(state, number, killed_ms=now_ms)
    return state, tuple(Kill(number, why) for number in numbers)


def _gather_is_over(state: State, now_ms: int) -> Moved:
    """Whoever has not come out of the old generation hangs. When nobody has, nobody can be told apart."""
    assert isinstance(state.phase, Gathering)
    absent = [number for number, member in state.holders.items() if not member.here]
    if absent and len(absent) == len(state.holders):
        return _over(state, f"{state.phase.why}, and no rank came back")
    state = replace(state, phase=replace(state.phase, until_ms=now_ms + state.rules.timeouts.gather_ms))
    return _killed(state, absent, "it did not come out of a generation that is over", now_ms)


def _form_is_over(state: State, now_ms: int) -> Moved:
    assert isinstance(state.phase, Forming)
    state = replace(state, phase=replace(state.phase, until_ms=now_ms + state.rules.timeouts.form_ms))
    late = {number: member for number, member in state.holders.items() if not member.settled}
    hung = _silent(state, now_ms) or (list(late) if len(late) < len(state.holders) else [])
    if not hung:
        return _over(state, "the gang did not form in time, and no rank stands out")
    return _killed(state, hung, "it did not come into the new generation in time", now_ms)


def _look_for_hangs(state: State, now_ms: int) -> Moved:
    """Only once nobody moves any more: who waits for the one that hangs may have been the first to stand still."""
    if now_ms < _hung_ms(state) or any(member.killed_ms is not None for member in state.holders.values()):
        return state, ()
    hung = _silent(state, now_ms) or _behind(state)
    why = f"it hung: no progress for {state.rules.timeouts.hang_ms / 1000:g} s"
    if hung:
        return _killed(state, hung, why, now_ms)
    return _reopen(state, "all ranks hung at the same place", now_ms)


def _silent(state: State, now_ms: int) -> list[int]:
    silent_ms = state.rules.timeouts.silent_ms
    return [number for number, member in state.holders.items() if now_ms >= member.heard_ms + silent_ms]


def _behind(state: State) -> list[int]:
    """Those that are behind all the others; nobody where all are at one place."""
    places = {number: (member.step, member.mark) for number, member in state.holders.items()}
    least = min(places.values())
    return [number for number, place in places.items() if place == least] if least < max(places.values()) else []


def _hung_ms(state: State) -> int:
    """When the gang hangs, if nobody moves before."""
    return max((member.moved_ms for member in state.holders.values()), default=0) + state.rules.timeouts.hang_ms


def _moments(state: State) -> Iterable[int]:
    timeouts = state.rules.timeouts
    if isinstance(state.phase, Over):
        return
    killing = any(member.killed_ms is not None for member in state.holders.values())
    for member in state.members.values():
        if member.killed_ms is not None:
            yield member.killed_ms + timeouts.kill_ms
        elif member.slot is None and not member.here:
            yield member.started_ms + timeouts.spare_ms
    if isinstance(state.phase, Training) and state.holders and not killing:
        yield _hung_ms(state)
    if isinstance(state.phase, Gathering | Forming) and state.phase.until_ms is not None:
        yield state.phase.until_ms
