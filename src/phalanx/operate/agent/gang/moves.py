"""From one generation to the next: who gets a slot, which processes are started, how many ranks there will be. Pure; see `advance`.

A gang goes on with fewer ranks where the job allows it and no spare can take a place soon; the slots that it does without get
processes meanwhile, and once these are ready the ranks are asked to come out after a step, and the gang is whole again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from phalanx.operate.agent.gang.events import Action, End, Go, Kill, Leave, Rest, Start
from phalanx.operate.agent.gang.state import (
    FAILURES_MAX,
    SHUT_MS,
    SHUT_MS_MAX,
    SPARE_FAILURES_MAX,
    Forming,
    Gathering,
    Member,
    Over,
    Resting,
    State,
    Training,
)

Moved = tuple[State, tuple[Action, ...]]


def change(state: State, number: int, **changes: Any) -> State:
    return replace(state, members={**state.members, number: replace(state.members[number], **changes)})


def over(state: State, why: str, interrupted: bool = False) -> Moved:
    return replace(state, phase=Over(why)), (End(why, interrupted),)


def killed(state: State, numbers: Iterable[int], why: str, now_ms: int) -> Moved:
    numbers = [number for number in numbers if state.members[number].killed_ms is None]
    for number in numbers:
        state = change(state, number, killed_ms=now_ms)
    return state, tuple(Kill(number, why) for number in numbers)


def failed(state: State, why: str) -> State | None:
    """With one failure more; None when that is one too many."""
    return replace(state, failures=state.failures + 1) if state.failures < FAILURES_MAX else None


def too_often(why: str) -> str:
    return f"{why}, and {FAILURES_MAX} recoveries before it had failed"


def reopen(state: State, why: str, now_ms: int, of_node: bool = False) -> Moved:
    """A fault: the present generation is over. of_node: the fault is that a node was lost."""
    if state.finished:
        return over(state, f"{why} after another rank had finished", of_node)
    counted = failed(state, why)
    return over(state, too_often(why)) if counted is None else gather(counted, why, now_ms)


def gather(state: State, why: str, now_ms: int, planned: bool = False) -> Moved:
    """The present generation is over, by a fault or, `planned`, because the gang grows."""
    best = max([state.best_step, *(member.step for member in state.ranks.values())])
    waiting = {number: replace(one, here=one.here and one.rank is None) for number, one in state.members.items()}
    times = state.rules.timeouts
    phase = Gathering(now_ms + times.gather_ms, now_ms, why, now_ms + times.shrink_ms, planned)
    moved, actions = go_on(replace(state, members=waiting, phase=phase, best_step=best), now_ms)
    return moved, (Leave(state.generation, why), *actions)


def go_on(state: State, now_ms: int) -> Moved:
    """Whatever can be done now: slots are filled, processes started, the next generation begun or a larger one asked for."""
    match state.phase:
        case Gathering():
            return _gathered(state, now_ms)
        case Training() if not state.finished:
            state, actions = _filled(state, now_ms)
            return _grown(state, now_ms, actions)
    return state, ()


def struck(state: State, member: Member, now_ms: int) -> State:
    """A process fell in its slot. Before the gang had made a step with it, that is one against the slot."""
    if member.slot is None or (state.proven and member.rank is not None):
        return state
    slots = list(state.slots)
    was = slots[member.slot]
    for_ms = min(SHUT_MS << min(was.strikes - 1, 16), SHUT_MS_MAX) if was.strikes else 0
    slots[member.slot] = replace(was, strikes=was.strikes + 1, shut_until_ms=now_ms + for_ms)
    return replace(state, slots=tuple(slots))


def _gathered(state: State, now_ms: int) -> Moved:
    if state.generation:
        state = _assigned(state, now_ms)
    size = state.rules.size_for(len(state.holders))
    if size is None:
        return _wanting(state, now_ms)
    if not all(member.here and member.killed_ms is None for member in state.holders.values()) or _awaits_spare(state, now_ms):
        return state, ()
    return _start(state, size, now_ms)


def _assigned(state: State, now_ms: int) -> State:
    """Slots get the spares of their node that are here, oldest first. One that is shut gets one only where it has to."""
    state = _placed(state, state.open_slots(now_ms))
    return state if state.rules.size_for(len(state.holders)) is not None else _placed(state, state.empty_slots)


def _placed(state: State, slots: Sequence[int]) -> State:
    for slot, number in _pairs(state, slots):
        state = change(state, number, slot=slot)
    return state


def _pairs(state: State, slots: Sequence[int]) -> list[tuple[int, int]]:
    """Which slot gets which spare that is here."""
    ready = sorted(number for number, member in state.spares.items() if member.here)
    found = []
    for slot in slots:
        number = next((one for one in ready if state.members[one].node == state.rules.node_of(slot)), None)
        if number is not None:
            ready.remove(number)
            found.append((slot, number))
    return found


def _wanting(state: State, now_ms: int) -> Moved:
    """Too few slots have a process: what is missing is started, unless there is no place for it."""
    places = len(state.holders) + len(state.empty_slots)
    if state.rules.size_for(places) is None:
        assert isinstance(state.phase, Gathering)
        needed = min((*state.rules.sizes, state.rules.world_size))
        return over(state, f"{state.phase.why}; the gang has {places} places left and needs {needed}", bool(state.gone))
    return _filled(state, now_ms)


def _awaits_spare(state: State, now_ms: int) -> bool:
    """Whether a slot may get a process any moment that was started before the fault."""
    phase = state.phase
    assert isinstance(phase, Gathering)
    if phase.spares_until_ms is None or now_ms >= phase.spares_until_ms:
        return False
    nodes = {state.rules.node_of(slot) for slot in state.open_slots(now_ms)}
    return any(not one.here and one.node in nodes and one.started_ms < phase.since_ms for one in state.spares.values())


def _start(state: State, size: int, now_ms: int) -> Moved:
    """The members in the first slots are its ranks; others wait in theirs, since the step's samples do not divide among so many."""
    assert isinstance(state.phase, Gathering)
    generation, phase = state.generation + 1, state.phase
    by_slot = sorted(state.holders, key=lambda number: state.members[number].slot or 0)[:size]
    rank_of = {number: rank for rank, number in enumerate(by_slot)}
    members = {
        number: replace(one, rank=rank_of.get(number), here=one.here and number not in rank_of, settled=False, moved_ms=now_ms)
        for number, one in state.members.items()
    }
    until_ms = now_ms + state.rules.timeouts.form_ms if state.generation else None
    forming = Forming(until_ms, phase.since_ms, phase.why)
    state = replace(state, generation=generation, members=members, phase=forming, proven=False)
    slots = tuple(members[number].slot or 0 for number in by_slot)
    return state, (Go(generation, tuple(by_slot), slots, phase.why, phase.since_ms, phase.planned),)


def _filled(state: State, now_ms: int) -> Moved:
    """Starts what is missing on each node: processes for its empty slots, or else the spares that the job wants."""
    if state.finished:
        return state, ()
    enough = state.rules.size_for(len(state.holders)) is not None
    empty = [state.rules.node_of(slot) for slot in (state.open_slots(now_ms) if enough else state.empty_slots)]
    actions: list[Action] = []
    for node in (node for node in state.rules.all_nodes if node not in state.gone):
        wanted = empty.count(node) or (state.rules.spares if enough else 0)
        missing = wanted - sum(one.node == node for one in state.spares.values())
        if missing > 0 and state.spare_failures >= SPARE_FAILURES_MAX and now_ms < state.spares_after_ms:
            return (state, tuple(actions)) if enough else over(state, "no spare starts any more")
        for _ in range(max(0, missing)):
            number = state.next_member
            fresh = Member(slot=None, node=node, started_ms=now_ms, heard_ms=now_ms, moved_ms=now_ms)
            state = replace(state, members={**state.members, number: fresh}, next_member=number + 1)
            actions.append(Start(number, node))
    return state, tuple(actions)


def _grown(state: State, now_ms: int, actions: tuple[Action, ...]) -> Moved:
    """Asks for a larger generation, once all processes that were started for it are ready or dead."""
    phase = state.phase
    assert isinstance(phase, Training)
    slots, ranks, times = state.open_slots(now_ms), len(state.ranks), state.rules.timeouts
    if not state.proven or now_ms < phase.since_ms + times.grow_ms or ranks == state.rules.world_size:
        return state, actions
    size = state.rules.size_for(len(state.holders) + len(_pairs(state, slots))) or 0
    nodes = {state.rules.node_of(slot) for slot in slots}
    starting = any(not one.here and one.node in nodes for one in state.spares.values())
    if size <= ranks or (starting and size < state.rules.world_size):
        return state, actions
    why = f"the gang grows from {ranks} to {size} ranks"
    return replace(state, phase=Resting(now_ms + times.hang_ms, why)), (*actions, Rest(state.generation, why))
