"""What a gang has in memory: which state is whole, who has whose part, and who holds replicas for whom."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import NotFound
from phalanx.job.checkpoint.keeper.messages import Peer, Replicated
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.replicas import Kept, Moment, find, holder_of, lacking, newest, of_node, of_place, read, safest
from tests.job.checkpoint.keeper_places import ATTEMPT, end_keepers, ends, eventually, place_at
from tests.job.checkpoint.snapshot_parts import PARTS, filled

HOST, SECRET = "127.0.0.1", "of the gang"


def kept(
    rank: int, step: int, generation: int = 1, world_size: int = 2, owner: str = "", holder: str = "", node: str = "n"
) -> Kept:
    owner = owner or f"place-{rank}"
    return Kept(
        rank=rank, world_size=world_size, step=step, generation=generation, owner=owner, holder=holder or owner, node=node,
        folder="f", slot=rank,
    )  # fmt: skip


def test_a_state_counts_once_every_rank_of_it_is_there_and_the_newer_generation_first() -> None:
    some = [kept(0, 5), kept(0, 4), kept(1, 4)]
    assert newest(some) == Moment(1, 4, 2)
    assert newest([*some, kept(1, 5, owner="place-1", holder="place-0")]) == Moment(1, 5, 2)
    assert newest([*some, kept(1, 5, generation=2)]) == Moment(1, 4, 2), "of two histories"
    assert newest([*some, kept(0, 3, 2), kept(1, 3, 2)]) == Moment(2, 3, 2), "what came after it did not happen"
    assert newest([kept(0, 9, world_size=3), kept(1, 9, world_size=3)]) is None
    assert newest(some, world_size=3) is None
    assert newest([]) is None


def test_one_s_own_memory_goes_before_one_on_the_node_and_a_replica_comes_last() -> None:
    place = place_at(Path("f"), slot=1)
    at = Moment(1, 4, 2)
    replica = kept(1, 4, holder="place-0", node="far")
    beside = kept(1, 4, owner="other", node=f"{os.uname().nodename}:f")
    own = kept(1, 4, owner=place.key, node=beside.node)
    assert find([replica, beside, own], at, 1, place) == own
    assert find([replica, beside], at, 1, place) == beside
    assert find([replica, kept(1, 4, node="far")], at, 1, place) == kept(1, 4, node="far")
    assert find([replica], at, 1, place) == replica
    assert find([replica], at, 0, place) is None


@given(nodes=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_replicas_lie_on_other_nodes_and_spread_evenly(nodes: Sequence[int]) -> None:
    names = [f"node-{index}" for index, count in enumerate(nodes) for _ in range(count)]
    holders = [holder_of(rank, names) for rank in range(len(names))]
    if len(names) == 1:
        assert holders == [None]
        return
    assert all(holder is not None and holder != rank for rank, holder in enumerate(holders))
    if len(nodes) > 1:
        assert all(names[holder or 0] != names[rank] for rank, holder in enumerate(holders))
    if len(set(nodes)) == 1:
        assert sorted(holder or 0 for holder in holders) == list(range(len(names)))


@given(nodes=st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_every_rank_that_comes_into_question_has_its_turn_as_a_holder(nodes: Sequence[int]) -> None:
    names = [f"node-{index}" for index, count in enumerate(nodes) for _ in range(count)]
    for rank, name in enumerate(names):
        others = {at for at, other in enumerate(names) if at != rank and (len(nodes) == 1 or other != name)}
        turns = [holder_of(rank, names, skip) for skip in range(len(others))]
        assert set(turns) == others if others else turns == []
        if others:
            assert holder_of(rank, names, len(others)) == holder_of(rank, names)
        far = [names[one or 0] for one in turns[: len(nodes) - 1]]
        assert len(set(far)) == len(far), "another node first"


def test_what_a_generation_falls_back_to_is_what_most_have_a_replica_of() -> None:
    def replica(rank: int, step: int, generation: int = 1) -> Kept:
        return kept(rank, step, generation, holder=f"place-{1 - rank}")

    own = [kept(rank, step) for rank in (0, 1) for step in (5, 6, 7)]
    at = Moment(1, 7, 2)
    assert safest(own, at) == at
    assert safest([*own, replica(0, 5), replica(1, 5), replica(0, 6)], at) == Moment(1, 5, 2)
    assert safest([*own, replica(0, 6)], at) == Moment(1, 6, 2)
    assert safest([*own, replica(0, 8), kept(0, 8), kept(1, 8)], at) == at, "later than that it did not happen"
    assert safest([*own[:3], replica(0, 5), replica(1, 5)], at) == at, "what a place has not itself it cannot keep"
    fetched = [kept(0, 5), kept(0, 4), replica(1, 5), replica(1, 4)]
    assert safest(fetched, Moment(1, 5, 2)) == Moment(1, 5, 2), "by then each place has its part of that"
    later = [kept(rank, 9, 2) for rank in (0, 1)]
    assert safest([*own, *later, replica(0, 5), replica(1, 5)], Moment(2, 9, 2)) == Moment(1, 5, 2)


def test_why_no_state_is_whole_is_said_in_words() -> None:
    assert lacking([]) == "no keeper holds any"
    assert "generation 2 is left of rank 1, 2," in lacking([kept(0, 5, 2, 3), kept(1, 9, 1, 3), kept(2, 9, 1, 3)])
    assert lacking([kept(0, 5), kept(1, 4)]) == "of no step of generation 1 all 2 ranks have their part"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Memory]]:
    """Two nodes on one machine with a rank each, and its snapshots of steps 1 and 2."""
    memories = []
    for rank in range(2):
        memory = Memory.attach(place_at(tmp_path / f"node-{rank}"), PARTS)
        memory.listen(HOST, SECRET)
        for step in (1, 2):
            taken(memory, rank, step)
        memories.append(memory)
    yield memories
    for memory in memories:
        memory.leave()
        if memory.place.folder.exists():
            end_keepers(memory.place.folder, slots=3)


def taken(memory: Memory, rank: int, step: int) -> None:
    draft = memory.begin(step, generation=1)
    assert draft is not None
    for part, into in draft.places:
        into[:] = filled(part, step)
    draft.seal(json.dumps({"rank": rank, "world_size": 2}))


def replicated(memory: Memory, step: int, to: Memory) -> None:
    (there,) = {one.port for one in of_place(to.place, HOST) if not one.is_replica}
    memory.replicate(step, Peer(host=HOST, port=there, secret=SECRET, owner=memory.place.key), keeps=True)
    eventually(lambda: any(isinstance(one, Replicated) for one in memory.news(0.1)))


def all_of(memories: Sequence[Memory]) -> list[Kept]:
    return [one for memory in memories for one in of_node(memory.place, HOST)]


def test_a_lost_place_s_part_is_read_from_its_replica(nodes: list[Memory]) -> None:
    mine, other = nodes
    replicated(mine, 1, other)
    taken(mine, 0, 3)
    taken(mine, 0, 4)
    assert mine.sealed() == (4, 3, 1), "the state of which there is a replica is kept, also where it came from"
    os.kill(mine.keeper_pid, signal.SIGKILL)
    ends(mine.keeper_pid)
    found = find(all_of(nodes), Moment(1, 1, 2), 0, other.place)
    assert found is not None and found.is_replica and found.holder == other.place.key
    sealed = read(found, SECRET, ATTEMPT)
    assert [(part, bytes(data)) for part, data in sealed.parts(1)] == [(part, bytes(filled(part, 1))) for part in PARTS]
    sealed.close()
    with pytest.raises(NotFound, match="does not give it"):
        read(found, "guessed", ATTEMPT)


def test_a_dead_rank_s_own_memory_is_read_from_another_node(nodes: list[Memory]) -> None:
    mine, other = nodes
    mine.leave()  # its process is gone, and its keeper is not
    found = find(all_of(nodes), Moment(1, 2, 2), 0, other.place)
    assert found is not None and not found.is_replica
    sealed = read(found, SECRET, ATTEMPT)
    assert [bytes(data) for _, data in sealed.parts(2)] == [bytes(filled(part, 2)) for part in PARTS]
    sealed.close()
    in_place = read(replace(found, port=0), SECRET, ATTEMPT)  # the holder's own node
    assert in_place.steps() == (2, 1)
    in_place.close()
    elsewhere = replace(found, port=0, node="far")
    with pytest.raises(NotFound, match="takes no calls"):
        read(elsewhere, SECRET, ATTEMPT)


def test_replicas_of_who_is_held_elsewhere_by_now_stay_until_nobody_needs_them(nodes: list[Memory]) -> None:
    mine, other = nodes
    third = Memory.attach(place_at(mine.place.folder, slot=2), PARTS)
    third.listen(HOST, SECRET)
    taken(third, 1, 1)
    replicated(third, 1, other)

    def replicas() -> list[tuple[str, int]]:
        return sorted((one.owner, one.step) for one in of_place(other.place) if one.is_replica)

    both = sorted([(mine.place.key, 2), (third.place.key, 1)])
    replicated(mine, 2, other)
    assert replicas() == both, "other ranks' new ones may not have arrived"
    other.drop_former([mine.place.key])
    eventually(lambda: replicas() == [(mine.place.key, 2)])
    other.forget_replicas(after=1)
    eventually(lambda: replicas() == [])  # a rollback: it is of a history that did not happen
    third.close()


def test_a_keeper_that_was_killed_is_reached_at_the_same_port_again(nodes: list[Memory]) -> None:
    mine, other = nodes
    before = {one.port for one in of_place(other.place)}
    os.kill(other.keeper_pid, signal.SIGKILL)
    ends(other.keeper_pid)
    assert of_place(other.place) == []
    assert other.repair()
    assert {one.port for one in of_place(other.place)} == before != {0}
    replicated(mine, 2, other)


def test_where_a_keeper_is_reached_is_what_it_says_itself(tmp_path: Path) -> None:
    """One that listens already goes on where it does, wherever the gang has moved since."""
    memory = Memory.attach(place_at(tmp_path / "node"), PARTS)
    port = memory.listen("127.0.0.2", SECRET)
    taken(memory, 0, 1)
    assert memory.listen(HOST, SECRET) == port and memory.host == "127.0.0.2"
    assert [(one.host, one.port) for one in of_place(memory.place, HOST)] == [("127.0.0.2", port)]
    memory.close()


def test_a_snapshot_that_does_not_say_whose_it_is_is_nobody_s(tmp_path: Path) -> None:
    memory = Memory.attach(place_at(tmp_path), PARTS)
    for step, note in enumerate(("", "[1]", '{"rank": 0}'), start=1):
        draft = memory.begin(step)
        assert draft is not None
        draft.seal(note)
    assert of_node(memory.place) == []
    memory.close()
