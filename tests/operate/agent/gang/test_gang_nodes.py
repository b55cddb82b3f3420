"""The coordinator's state machine with places on several nodes."""

from phalanx.operate.agent.gang.events import End, Finished, Go, Here, NodeLost, Start
from phalanx.operate.agent.gang.state import Over, Training
from tests.operate.agent.gang.test_gang_state import trained

TWO_NODES = (0, 0, 1, 1)


def test_a_rank_is_replaced_by_a_spare_of_its_own_node() -> None:
    for fell, node in ((0, 0), (3, 1)):
        world = trained(4, 1, TWO_NODES)
        spares = {action.node: action.member for action in world.done if isinstance(action, Start)}
        assert sorted(spares) == [0, 1], "each node holds its own"
        world.die(fell)
        world.settle([])
        assert isinstance(world.state.phase, Training)
        members = [action for action in world.done if isinstance(action, Go)][-1].members
        assert members == tuple(spares[node] if member == fell else member for member in range(4))
        assert [action.node for action in world.done if isinstance(action, Start)][2:] == [node], "and only it was replaced"


def test_without_spares_one_is_started_where_the_place_is_empty() -> None:
    world = trained(4, 0, TWO_NODES)
    world.die(2)
    assert [action for action in world.done if isinstance(action, Start)] == [Start(4, 1)]
    world.settle([])
    assert isinstance(world.state.phase, Training)


def test_a_lost_node_interrupts_a_gang_that_cannot_do_without_it() -> None:
    world = trained(4, 1, TWO_NODES)
    world.lose(1)
    assert isinstance(world.state.phase, Over)
    assert world.done[-1] == End("node 1 was cut off; the gang has 2 places left and needs 4", interrupted=True)


def test_a_node_whose_ranks_have_finished_is_no_loss() -> None:
    world = trained(2, 0, (0, 1))
    world.hear(Finished(1))
    before = world.state
    world.hear(NodeLost(1, "was cut off"))
    assert world.state == before


def test_words_from_a_node_that_was_lost_change_nothing() -> None:
    world = trained(4, 1, TWO_NODES)
    world.lose(1)
    before = world.state
    world.hear(Here(2, 1))
    world.hear(NodeLost(1, "was cut off again"))
    assert world.state == before
