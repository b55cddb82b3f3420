"""The coordinator's state machine against a world that obeys it, with faults at every moment."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.timeouts import Timeouts, timeouts
from phalanx.operate.agent.gang.advance import advance
from phalanx.operate.agent.gang.events import (
    Action,
    Beat,
    Died,
    End,
    Event,
    Finished,
    Go,
    Here,
    Kill,
    Leave,
    NodeLost,
    OfMember,
    Rest,
    Settled,
    Start,
    Ticked,
)
from phalanx.operate.agent.gang.lateness import next_moment
from phalanx.operate.agent.gang.state import (
    FAILURES_MAX,
    SPARE_FAILURES_MAX,
    Forming,
    Gathering,
    Over,
    Resting,
    Rules,
    State,
    Training,
    first,
)
from tests.drawn import examples

TIMES = timeouts(10_000)
EVENTS_MAX = 400
"""From a fault to the next generation that trains, or the end, with two ranks and everybody doing as told."""


@dataclass
class World:
    """Processes that do as they are told, unless stopped. `todo`: what is under way, in any order."""

    state: State
    now_ms: int = 0
    todo: list[Event] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)
    done: list[Action] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    out: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def of(
        cls, world_size: int, spares: int, times: Timeouts = TIMES, nodes: tuple[int, ...] = (), sizes: tuple[int, ...] = ()
    ) -> "World":
        made = cls(first(Rules(world_size=world_size, spares=spares, timeouts=times, nodes=nodes, sizes=sizes), 0))
        made.todo = [Here(member) for member in range(world_size)]
        return made

    def hear(self, event: Event) -> None:
        before = self.state
        self.state, actions = advance(before, event, self.now_ms)
        self.check(before)
        for action in actions:
            self.done.append(action)
            self.obey(action)

    def check(self, before: State) -> None:
        """What holds after every event."""
        slots = [member.slot for member in self.state.members.values() if member.slot is not None]
        assert len(slots) == len(set(slots)), "two members in one slot"
        for member in self.state.members.values():
            assert member.slot is None or member.node == self.state.rules.node_of(member.slot), "a member in another node's slot"
            assert member.node not in self.state.gone
        assert self.state.generation - before.generation in (0, 1)
        assert self.state.next_member >= before.next_member
        if isinstance(self.state.phase, Forming | Training | Resting) and not self.state.finished:
            ranks = sorted(member.rank for member in self.state.members.values() if member.rank is not None)
            allowed = {*self.state.rules.sizes, self.state.rules.world_size}
            assert (ranks == list(range(len(ranks))) and len(ranks) in allowed) or self.state.phase == before.phase

    def obey(self, action: Action) -> None:
        match action:
            case Start(member):
                self.todo.append(Here(member))
            case Kill(member):
                self.todo = [event for event in self.todo if not isinstance(event, OfMember) or event.member != member]
                self.todo.append(Died(member, "was killed"))
            case Leave(generation) | Rest(generation):
                (members,) = [action.members for action in self.done if isinstance(action, Go) and action.generation == generation]
                self.todo += [Here(member, generation) for member in members if self.comes_out(member, generation)]
            case Go(generation, members):
                self.todo += [Settled(member, generation) for member in members if member not in self.stopped]
            case End():
                assert isinstance(self.state.phase, Over)

    def comes_out(self, member: int, generation: int) -> bool:
        """Once; not of those that are dead or stopped."""
        goes = member in self.state.members and member not in self.stopped and (member, generation) not in self.out
        self.out.add((member, generation))
        return goes

    def die(self, member: int, replaceable: bool = True) -> None:
        self.todo = [event for event in self.todo if not isinstance(event, OfMember) or event.member != member]
        self.gone.add(member)
        self.hear(Died(member, "was killed by signal 9", replaceable))

    def lose(self, node: int) -> None:
        there = {number for number, member in self.state.members.items() if member.node == node}
        self.todo = [event for event in self.todo if not isinstance(event, OfMember) or event.member not in there]
        self.gone |= there
        self.hear(NodeLost(node, "was cut off"))

    def one_event(self, choice: int) -> bool:
        """Whether anything was left to happen: something under way, else time passes to the next moment."""
        if self.todo:
            event = self.todo.pop(choice % len(self.todo))
            if isinstance(event, OfMember) and event.member in self.stopped and not isinstance(event, Died):
                return True
            self.hear(event)
            return True
        moment = next_moment(self.state)
        if moment is None or (isinstance(self.state.phase, Training) and not self.stopped & set(self.state.ranks)):
            return self.train_on()
        self.now_ms = max(self.now_ms, moment)
        for member in self.state.ranks:
            if member not in self.stopped and isinstance(self.state.phase, Training):
                self.state, _ = advance(self.state, Beat(member, 7, 3), self.now_ms - 1)
        self.hear(Ticked())
        return True

    def train_on(self) -> bool:
        """A gang that could be larger makes steps, and time passes. Whether something may come of it."""
        phase, rules = self.state.phase, self.state.rules
        if not rules.sizes or not isinstance(phase, Training) or len(self.state.ranks) == rules.world_size:
            return False
        soon = [
            phase.since_ms + rules.timeouts.grow_ms,
            self.state.spares_after_ms,
            *(one.shut_until_ms for one in self.state.slots),
        ]
        if self.state.proven and max(soon) <= phase.looked_ms:
            return False
        self.now_ms += rules.timeouts.hang_ms // 2
        for member in list(self.state.ranks):
            self.hear(Beat(member, self.state.best_step + 1, self.now_ms))
        self.hear(Ticked())
        return True

    def until(self, phase: type) -> None:
        while not isinstance(self.state.phase, phase):
            assert self.one_event(0)

    def settle(self, choices: list[int]) -> int:
        """Runs until nothing is left to happen; how many events that took."""
        count = 0
        while self.one_event(choices[count % len(choices)] if choices else 0):
            count += 1
            assert count < EVENTS_MAX, f"still {self.state.phase} after {count} events"
        return count


def trained(world_size: int = 2, spares: int = 1, nodes: tuple[int, ...] = (), sizes: tuple[int, ...] = ()) -> World:
    world = World.of(world_size, spares, nodes=nodes, sizes=sizes)
    world.settle([])
    assert isinstance(world.state.phase, Training)
    return world


def trains(world: World) -> bool:
    return isinstance(world.state.phase, Training)


def ending(world: World) -> str:
    assert isinstance(world.state.phase, Over)
    return world.state.phase.why


choices = st.lists(st.integers(0, 9), min_size=1, max_size=30)
KINDS = ["die", "stop", "spare", "exit", "node"]
faults = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 6)), max_size=8)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 4), st.integers(0, 2), st.integers(1, 3), st.sets(st.integers(1, 3)), faults, choices)
def test_every_fault_ends_in_a_new_generation_or_the_end_of_the_gang(
    world_size: int, spares: int, ranks_a_node: int, fewer: set[int], planned: list[tuple[str, int, int]], order: list[int]
) -> None:
    sizes = tuple(size for size in sorted(fewer) if size < world_size)
    world = World.of(world_size, spares, nodes=tuple(rank // ranks_a_node for rank in range(world_size)), sizes=sizes)
    for kind, which, after in planned:
        for turn in range(after):
            world.one_event(order[turn % len(order)])
        if kind == "node":
            world.lose(1 + which % 2)
            continue
        pool = [number for number, member in world.state.members.items() if (member.slot is None) == (kind == "spare")]
        if not pool or isinstance(world.state.phase, Over):
            continue
        member = pool[which % len(pool)]
        if kind == "stop":
            if world.state.generation > 1 or isinstance(world.state.phase, Training):  # before, a start that nobody bounds
                world.stopped.add(member)
        else:
            world.die(member, replaceable=kind != "exit")
    world.settle(order)
    check_ended(world)


def check_ended(world: World) -> None:
    """What holds of every history once nothing is under way any more."""
    state, rules = world.state, world.state.rules
    assert isinstance(state.phase, Training | Over)
    goes = [action for action in world.done if isinstance(action, Go)]
    assert [go.generation for go in goes] == list(range(1, len(goes) + 1)), "generations only grow, one at a time"
    for go in goes:
        assert len(set(go.members)) == len(go.slots)
        assert len(go.slots) in (*rules.sizes, rules.world_size)
        assert list(go.slots) == sorted(set(go.slots))
    if isinstance(state.phase, Training):
        assert not world.stopped & set(state.ranks), "a stopped process is no rank of a gang that trains"
        if not state.gone and not state.finished and not world.stopped:
            assert len(state.ranks) == rules.world_size, "whoever has all its places back is whole again"


def test_a_dead_rank_zero_is_replaced_by_the_spare_and_survivors_stay() -> None:
    world = trained()
    world.die(0)
    world.settle([])
    assert isinstance(world.state.phase, Training)
    last = [action for action in world.done if isinstance(action, Go)][-1]
    assert last == Go(2, (2, 1), (0, 1), "rank 0 was killed by signal 9", 0)
    assert world.done.count(Leave(1, "rank 0 was killed by signal 9")) == 1
    assert [action.member for action in world.done if isinstance(action, Start)] == [2, 3], "the spare was replaced"


def test_two_faults_at_once_take_one_recovery() -> None:
    world = trained(3, 1)
    world.die(0)
    world.die(2)
    world.settle([])
    assert world.state.generation == 2
    assert sorted(world.state.holders) == [1, 3, 4]


def test_a_death_while_the_new_generation_forms_leads_to_another() -> None:
    world = trained()
    world.die(0)
    world.until(Forming)
    world.die(1)
    world.settle([])
    assert trains(world)
    assert world.state.generation == 3
    assert sorted(world.state.holders) == [2, 3]


def test_a_spare_that_dies_is_replaced_a_few_times_only() -> None:
    world = trained()
    for _ in range(10):
        spares = [number for number, member in world.state.members.items() if member.slot is None]
        if not spares:
            break
        world.todo.clear()
        world.die(spares[0])
    assert trains(world), "without spares the ranks train on"
    assert len([action for action in world.done if isinstance(action, Start)]) == SPARE_FAILURES_MAX
    world.die(0)
    assert ending(world) == "no spare starts any more"


def test_a_stopped_rank_is_found_by_its_silence_and_killed() -> None:
    world = trained()
    world.stopped.add(0)
    world.settle([])
    kills = [action for action in world.done if isinstance(action, Kill)]
    assert kills == [Kill(0, "it hung: no progress for 10 s")]
    assert isinstance(world.state.phase, Training)
    assert sorted(world.state.holders) == [1, 2]


def test_a_rank_that_lives_and_does_not_move_is_found_by_its_place() -> None:
    world = trained()
    world.hear(Beat(1, 7, 2))
    world.now_ms = 1_000
    world.hear(Beat(0, 7, 1))  # the one that hangs need not be the first to stand still
    for world.now_ms in (6_000, 12_000):
        for member in (0, 1):
            world.hear(Beat(member, 7, member + 1))
        world.hear(Ticked())
    assert [action.member for action in world.done if isinstance(action, Kill)] == [0]


def test_ranks_that_hang_at_one_place_are_told_to_leave_and_who_does_not_is_killed() -> None:
    world = trained()
    world.now_ms = 10_000
    for member in (0, 1):
        world.hear(Beat(member))
    world.hear(Ticked())
    assert isinstance(world.state.phase, Gathering)
    world.hear(Here(1, 1))
    world.now_ms += TIMES.gather_ms
    world.hear(Ticked())
    assert [action.member for action in world.done if isinstance(action, Kill)] == [0]


def test_the_same_step_that_kills_again_and_again_ends_the_gang() -> None:
    world = trained()
    for attempt in range(FAILURES_MAX + 1):
        assert isinstance(world.state.phase, Training), attempt
        for member in world.state.holders:
            world.hear(Beat(member, 7, 0))
        world.die(min(world.state.holders))
        world.settle([])
    assert "3 recoveries before it had failed" in ending(world)


def test_steps_beyond_the_fault_make_the_gang_sound_again() -> None:
    world = trained()
    for step in range(1, 20):
        for member in world.state.holders:
            world.hear(Beat(member, step, 0))
        world.die(min(world.state.holders))
        world.settle([])
        assert isinstance(world.state.phase, Training), step


@pytest.mark.parametrize("formed", [False, True])
def test_what_a_gang_without_coordinator_would_not_survive_ends_this_one_too(formed: bool) -> None:
    world = trained() if formed else World.of(2, 1)
    world.die(0, replaceable=not formed)
    assert isinstance(world.state.phase, Over)
    assert isinstance(world.done[-1], End)


def test_a_death_after_another_rank_has_finished_ends_the_gang() -> None:
    world = trained()
    world.hear(Finished(1))
    world.die(0)
    assert ending(world) == "rank 0 was killed by signal 9 after another rank had finished"


def test_words_of_an_older_generation_change_nothing() -> None:
    world = trained()
    world.die(0)
    world.settle([])
    before = world.state
    world.hear(Here(1, 1))
    world.hear(Settled(1, 1))
    assert world.state == before


def test_a_killed_process_that_does_not_end_ends_the_gang() -> None:
    world = trained()
    world.stopped.add(0)
    while not any(isinstance(action, Kill) for action in world.done):
        world.one_event(0)
    world.todo.clear()
    world.now_ms += TIMES.kill_ms
    world.hear(Ticked())
    assert isinstance(world.state.phase, Over)


def test_the_order_of_timeouts_holds_for_every_hang_timeout_and_is_told_where_it_does_not() -> None:
    for hang_ms in (5_000, 60_000, 86_400_000):
        assert timeouts(hang_ms).problems() == []
    assert any("silent_ms" in problem for problem in Timeouts(silent_ms=100, beat_ms=200).problems())
    for meet_ms in (8_000, 600_000):
        assert any("meet_ms" in problem for problem in Timeouts(meet_ms=meet_ms).problems())
    assert any("unmet_ms" in problem for problem in Timeouts(unmet_ms=30_000).problems())
    assert any("collective_ms" in problem for problem in Timeouts(collective_ms=1_000).problems())
    with pytest.raises(ValueError, match="5s to 24h"):
        timeouts(4_999)
