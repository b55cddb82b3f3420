"""The coordinator's state machine where no spare can take a place: fewer ranks go on, and it is whole again later."""

from itertools import pairwise

import pytest

from phalanx.operate.agent.gang.events import Beat, Dismiss, End, Finished, Go, Here, Leave, Rest, Start, Ticked
from phalanx.operate.agent.gang.state import SHUT_MS, Gathering, Over, Resting, Training
from tests.operate.agent.gang.test_gang_state import TIMES, World, ending, trained, trains


def goes(world: World) -> list[tuple[int, ...]]:
    """Slots of each generation."""
    return [action.slots for action in world.done if isinstance(action, Go)]


def starts(world: World) -> list[int]:
    return [action.member for action in world.done if isinstance(action, Start)]


def shrunk(world_size: int = 2, spares: int = 0, sizes: tuple[int, ...] = (1,), dead: tuple[int, ...] = (0,)) -> World:
    """Trains with fewer ranks; whatever was started since is not there yet."""
    world = trained(world_size, spares, sizes=sizes)
    for member in dead:
        world.die(member)
    while not (trains(world) and world.state.generation > 1):
        fresh = set(starts(world))
        index = next(at for at, event in enumerate(world.todo) if getattr(event, "member", None) not in fresh)
        world.hear(world.todo.pop(index))
    return world


def test_without_a_spare_the_survivor_goes_on_alone_at_once_and_is_rank_zero() -> None:
    world = shrunk()
    assert goes(world) == [(0, 1), (1,)]
    assert world.now_ms == 0, "nothing was waited for that had not been started"
    assert [number for number, member in world.state.ranks.items() if member.rank == 0] == [1]
    assert starts(world) == [2], "and only then another process is started"


def test_the_gang_is_whole_again_after_a_step_and_that_is_no_failure() -> None:
    world = shrunk()
    world.settle([])
    assert goes(world) == [(0, 1), (1,), (0, 1)]
    (rest,) = [action for action in world.done if isinstance(action, Rest)]
    assert rest == Rest(2, "the gang grows from 1 to 2 ranks")
    assert world.state.failures == 0
    assert world.done.index(rest) < world.done.index(Leave(2, rest.why)), "it is asked before it is told"


def test_it_does_not_grow_before_it_has_made_a_step_nor_too_soon() -> None:
    world = shrunk()
    world.hear(Here(2))
    assert trains(world)
    world.now_ms = TIMES.grow_ms
    world.hear(Here(2))
    assert trains(world), "no step was made"


def test_a_warm_spare_takes_the_place_and_nothing_shrinks() -> None:
    world = trained(2, 1, sizes=(1,))
    world.die(0)
    world.settle([])
    assert goes(world) == [(0, 1), (0, 1)]


def test_a_spare_that_is_nearly_there_is_waited_for_and_no_longer_than_a_moment() -> None:
    for comes in (True, False):
        world = trained(2, 1, sizes=(1,))
        world.die(2)  # the spare; its successor starts
        world.todo.clear()
        world.now_ms = 5_000
        world.die(0)
        world.hear(Here(1, 1))
        assert isinstance(world.state.phase, Gathering)
        if comes:
            world.hear(Here(3))
            assert goes(world)[-1] == (0, 1)
        else:
            world.todo.clear()
            world.one_event(0)
            assert (world.now_ms, goes(world)[-1]) == (5_000 + TIMES.shrink_ms, (1,))


@pytest.mark.parametrize(("sizes", "slots"), [((1, 2), (1, 2)), ((2,), (1, 2)), ((1,), (1,)), ((3,), (1, 2, 3))])
def test_the_largest_allowed_size_goes_on_and_the_others_wait_in_their_places(
    sizes: tuple[int, ...], slots: tuple[int, ...]
) -> None:
    world = shrunk(4, sizes=sizes)
    assert goes(world)[-1] == slots
    assert len(world.state.holders) == 3
    waiting = set(world.state.holders) - set(world.state.ranks)
    for member in waiting:
        world.die(member)
        assert trains(world), "its death is nobody's fault"
    world.settle([])
    assert goes(world)[-1] == (0, 1, 2, 3)


def test_too_few_for_any_size_wait_for_a_process_as_ever() -> None:
    world = trained(4, 0, sizes=(3,))
    world.die(0)
    world.die(1)
    assert starts(world) == [4, 5]
    for member in (2, 3):
        world.hear(Here(member, 1))
    assert isinstance(world.state.phase, Gathering)
    world.settle([])
    assert goes(world) == [(0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3)]


def test_a_lost_node_leaves_its_places_empty_for_good() -> None:
    world = trained(4, 1, nodes=(0, 0, 1, 1), sizes=(1, 2))
    world.lose(1)
    world.settle([])
    assert goes(world)[-1] == (0, 1)
    assert trains(world)
    before = len(world.done)
    world.die(0)
    world.settle([])
    assert len(goes(world)[-1]) == 2, "whoever falls later is replaced where it fell"
    assert {action.node for action in world.done[before:] if isinstance(action, Start)} == {0}


def test_the_lost_node_ends_a_gang_that_has_too_few_places_left() -> None:
    world = trained(4, 1, nodes=(0, 0, 0, 1), sizes=(2,))
    world.lose(1)
    world.settle([])
    assert goes(world)[-1] == (0, 1)
    world = trained(4, 1, nodes=(0, 1, 1, 1), sizes=(2,))
    world.lose(1)
    assert world.done[-1] == End("node 1 was cut off; the gang has 1 places left and needs 2", interrupted=True)


def test_a_place_that_kills_whoever_is_put_there_is_left_empty_for_longer_and_longer() -> None:
    """A device that is broken costs recoveries, but neither the gang nor its time."""
    world = shrunk()
    times = []
    for _ in range(5):
        while 0 not in {member.slot for member in world.state.ranks.values()}:
            assert world.one_event(0)
        (member,) = [number for number, one in world.state.ranks.items() if one.slot == 0]
        times.append(world.now_ms)
        world.die(member)
        assert not isinstance(world.state.phase, Over)
    pauses = [later - sooner for sooner, later in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 4 * SHUT_MS


def test_a_death_while_it_comes_out_to_grow_is_a_fault_as_any() -> None:
    world = shrunk(4, sizes=(1, 2))
    world.until(Resting)
    world.die(1)
    world.settle([])
    assert trains(world)
    assert goes(world)[-1] == (0, 1, 2, 3)


def test_who_does_not_come_out_when_asked_is_told_and_then_killed() -> None:
    world = shrunk(3, sizes=(1, 2))
    world.until(Resting)
    world.stopped.add(1)
    world.settle([])
    assert goes(world)[-1] == (0, 1, 2)
    assert 1 not in world.state.members


def test_what_waits_is_dismissed_when_the_others_have_finished() -> None:
    world = shrunk(4, sizes=(2,))
    ranks, waiting = set(world.state.ranks), set(world.state.members) - set(world.state.ranks)
    for member in sorted(ranks):
        assert not any(isinstance(action, Dismiss) for action in world.done)
        world.hear(Finished(member))
    assert world.done[-1] == Dismiss(tuple(sorted(waiting)))


def test_no_process_that_starts_is_no_end_for_a_gang_that_does_without() -> None:
    world = shrunk()
    for _ in range(8):
        while not world.state.spares:
            assert world.one_event(0)
        world.todo = [event for event in world.todo if getattr(event, "member", None) not in world.state.spares]
        world.die(min(world.state.spares))
        assert trains(world)
    assert world.now_ms > 4 * TIMES.spare_ms, "after some it is tried less and less often"


def test_the_same_step_that_kills_a_smaller_and_smaller_gang_ends_it() -> None:
    world = trained(4, 0, sizes=(1, 2, 3))
    for _ in range(4):
        world.die(min(world.state.ranks))
        while world.todo and not isinstance(world.state.phase, Training | Over):
            world.one_event(0)
    assert "3 recoveries before it had failed" in ending(world)


def resting() -> tuple[World, int]:
    """Two of three ranks train; the third's process is ready, and they were asked to come out until then."""
    world = shrunk(3, sizes=(2,), dead=(2,))
    world.until(Resting)
    assert isinstance(world.state.phase, Resting)
    return world, world.state.phase.until_ms


def phase(world: World) -> type:
    return type(world.state.phase)


def test_ranks_that_were_asked_out_are_not_told_to_while_one_of_them_moves() -> None:
    world, until_ms = resting()
    world.now_ms = until_ms - 1
    world.hear(Beat(0, 9, 1))
    world.now_ms += TIMES.hang_ms - 1
    world.hear(Ticked())
    assert phase(world) is Resting, "its step takes long, and it moves"
    world.now_ms += 1
    world.hear(Ticked())
    assert phase(world) is Gathering


def test_a_rank_at_its_last_upload_is_not_asked_out_once_another_has_finished() -> None:
    world, _ = resting()
    world.hear(Finished(0))
    assert phase(world) is Training
    world.now_ms += TIMES.hang_ms - 1
    world.hear(Beat(1, 9, 1))
    world.now_ms += TIMES.hang_ms - 1
    world.hear(Ticked())
    assert phase(world) is Training
    assert not [action for action in world.done if isinstance(action, Leave) and action.generation == 2]
    world.hear(Finished(1))
    assert isinstance(world.done[-1], Dismiss)
