"""Replicas beside owners: within the slots that there are, no token lost, and GPUs level where one slot for each can do it."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.fabric.experts import Replica, gpu_loads, replicas
from phalanx.fabric.experts.replicas import EVEN, PARTS
from tests.drawn import examples


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 4), st.data())
def test_replicas_lie_in_their_slots_and_no_gpu_gets_fuller_than_the_fullest_was(
    gpus: int, mine: int, spare: int, data: st.DataObject
) -> None:
    loads = data.draw(st.lists(st.integers(0, 10**6), min_size=gpus * mine, max_size=gpus * mine))
    found = replicas(loads, gpus, spare)
    assert all(one.parts > 0 and one.expert // mine != one.gpu for one in found)
    assert max(Counter(one.gpu for one in found).values(), default=0) <= spare
    assert len({(one.expert, one.gpu) for one in found}) == len(found)
    for expert in range(len(loads)):
        assert sum(one.parts for one in found if one.expert == expert) <= PARTS
    before, after = gpu_loads(loads, gpus), gpu_loads(loads, gpus, found)
    assert sum(after) == pytest.approx(sum(loads))
    rounding = gpus * max(loads) / PARTS
    assert min(after) >= min(before) - rounding and max(after) <= max(before) + rounding


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(2, 12), st.data())
def test_one_slot_each_makes_gpus_of_one_expert_level(gpus: int, data: st.DataObject) -> None:
    """As the alias method makes urns."""
    loads = data.draw(st.lists(st.integers(100, 10**6), min_size=gpus, max_size=gpus))
    level = gpu_loads(loads, gpus, replicas(loads, gpus, 1))
    assert max(level) <= (1 + EVEN) * sum(loads) / gpus + gpus * max(loads) / PARTS


def test_the_fullest_gpu_gives_to_the_emptiest_what_that_lacks() -> None:
    assert replicas([6, 2, 4, 0, 4, 0, 0, 0], num_gpus=4, spare=1) == (Replica(0, 3, PARTS * 4 // 6),)
    assert replicas([50, 50, 50, 49], num_gpus=2, spare=1) == (), "what is nearly level stays"
    assert replicas([0] * 4, num_gpus=2, spare=1) == ()
    assert replicas([9, 0, 0, 0], num_gpus=2, spare=0) == ()
