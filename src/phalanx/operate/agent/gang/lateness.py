"""What is due without anything having happened: who hangs, who is late, what was put off. Pure; see `advance`.

Who hangs is not easily seen, since everybody waits for the one that does: first those that give no sign of life (a stopped one),
then those whose main thread is behind the others', and where all stand at the same place, those that do not come out of their
generation when told to. What is killed is then heard of as dead.
"""

from collections.abc import Iterable
from dataclasses import replace

from phalanx.operate.agent.gang.moves import Moved, gather, go_on, killed, over, reopen
from phalanx.operate.agent.gang.state import Forming, Gathering, Member, Over, Resting, State, Training


def next_moment(state: State) -> int | None:
    """When `Ticked` is due, if nothing happens before."""
    return min(_moments(state), default=None)


def in_time(state: State, now_ms: int) -> Moved:
    """What is due, one thing after another."""
    for number, member in state.members.items():
        if member.killed_ms is not None and now_ms >= member.killed_ms + state.rules.timeouts.kill_ms:
            return over(state, f"process {number} of the gang was killed and does not end")
    late = [number for number, member in state.spares.items() if _is_late_spare(state, member, now_ms)]
    if late:
        return killed(state, late, "it did not start in time", now_ms)
    match state.phase:
        case Gathering(until_ms=until_ms) if until_ms is not None and now_ms >= until_ms:
            return _gather_is_over(state, now_ms)
        case Gathering(spares_until_ms=until_ms) as phase if until_ms is not None and now_ms >= until_ms:
            return go_on(replace(state, phase=replace(phase, spares_until_ms=None)), now_ms)
        case Forming(until_ms) if until_ms is not None and now_ms >= until_ms:
            return _form_is_over(state, now_ms)
        case Training() as phase if now_ms >= _hung_ms(state):
            return _look_for_hangs(state, now_ms)
        case Training() as phase:
            return go_on(replace(state, phase=replace(phase, looked_ms=now_ms)), now_ms)
        case Resting(why=why) as phase if now_ms >= _rested_ms(state, phase):
            return gather(state, why, now_ms, planned=True)
    return state, ()


def _is_late_spare(state: State, member: Member, now_ms: int) -> bool:
    return not member.here and now_ms >= member.started_ms + state.rules.timeouts.spare_ms


def _gather_is_over(state: State, now_ms: int) -> Moved:
    """Whoever has not come out of the old generation hangs. When nobody has, nobody can be told apart."""
    assert isinstance(state.phase, Gathering)
    absent = [number for number, member in state.holders.items() if not member.here]
    if absent and len(absent) == len(state.holders):
        return over(state, f"{state.phase.why}, and no rank came back")
    state = replace(state, phase=replace(state.phase, until_ms=now_ms + state.rules.timeouts.gather_ms))
    return killed(state, absent, "it did not come out of a generation that is over", now_ms)


def _form_is_over(state: State, now_ms: int) -> Moved:
    assert isinstance(state.phase, Forming)
    state = replace(state, phase=replace(state.phase, until_ms=now_ms + state.rules.timeouts.form_ms))
    late = [number for number, member in state.ranks.items() if not member.settled]
    hung = _silent(state, now_ms) or (late if len(late) < len(state.ranks) else [])
    if not hung:
        return over(state, "the gang did not form in time, and no rank stands out")
    return killed(state, hung, "it did not come into the new generation in time", now_ms)


def _look_for_hangs(state: State, now_ms: int) -> Moved:
    """Only once nobody moves any more: who waits for the one that hangs may have been the first to stand still."""
    if _is_killing(state):
        return state, ()
    hung = _silent(state, now_ms) or _behind(state)
    why = f"it hung: no progress for {state.rules.timeouts.hang_ms / 1000:g} s"
    if hung:
        return killed(state, hung, why, now_ms)
    return reopen(state, "all ranks hung at the same place", now_ms)


def _silent(state: State, now_ms: int) -> list[int]:
    silent_ms = state.rules.timeouts.silent_ms
    return [number for number, member in state.ranks.items() if now_ms >= member.heard_ms + silent_ms]


def _behind(state: State) -> list[int]:
    """Those that are behind all the others; nobody where all are at one place."""
    places = {number: (member.step, member.mark) for number, member in state.ranks.items()}
    least = min(places.values())
    return [number for number, place in places.items() if place == least] if least < max(places.values()) else []


def _hung_ms(state: State) -> int:
    """When the gang hangs, if nobody moves before."""
    return max((member.moved_ms for member in state.ranks.values()), default=2**62) + state.rules.timeouts.hang_ms


def _rested_ms(state: State, phase: Resting) -> int:
    """When ranks are told to come out that were asked to: as long as one moves its step is not over."""
    return max(phase.until_ms, _hung_ms(state)) if state.ranks else phase.until_ms


def _is_killing(state: State) -> bool:
    return any(member.killed_ms is not None for member in state.ranks.values())


def _moments(state: State) -> Iterable[int]:
    timeouts = state.rules.timeouts
    if isinstance(state.phase, Over):
        return
    for member in state.members.values():
        if member.killed_ms is not None:
            yield member.killed_ms + timeouts.kill_ms
        elif member.slot is None and not member.here:
            yield member.started_ms + timeouts.spare_ms
    match state.phase:
        case Gathering(until_ms=until_ms, spares_until_ms=spares_until_ms):
            yield from (moment for moment in (until_ms, spares_until_ms) if moment is not None)
        case Forming(until_ms=int(until_ms)):
            yield until_ms
        case Resting() as phase:
            yield _rested_ms(state, phase)
        case Training(since_ms, looked_ms):
            if state.ranks and not _is_killing(state):
                yield _hung_ms(state)
            put_off = [since_ms + timeouts.grow_ms, state.spares_after_ms, *(slot.shut_until_ms for slot in state.slots)]
            yield from (moment for moment in put_off if moment > looked_ms)
