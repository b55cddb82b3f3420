"""Where keepers of a gang are reached, and what a place counts as having after a fault; without processes of ranks."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.core.errors import SetupError
from phalanx.job.checkpoint.copier import Copier
from phalanx.job.checkpoint.keeper.messages import Peer, Replicated
from phalanx.job.checkpoint.keeper.segments import TOO_LITTLE
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.replicas import read
from phalanx.job.train import exchange
from phalanx.job.train.exchange import Exchange
from tests.job.checkpoint.keeper_places import ATTEMPT, end_keepers, eventually, place_at, snapshot
from tests.job.checkpoint.snapshot_parts import PARTS

SECRET = "of the gang"
OUTSIDE = "127.0.0.2"  # of this machine, and not where a gang of one node listened before


@pytest.fixture
def copier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copier]:
    """The only rank that is left of a gang."""
    monkeypatch.setattr(exchange, "told_by_all", lambda mine: [mine])
    monkeypatch.setattr(exchange, "address_towards", lambda host: OUTSIDE)
    copier = Copier(place_at(tmp_path / "left"), torch.device("cpu"))
    copier.begin_fit(PARTS, 2)
    copier.end_fit()
    yield copier
    copier.close()
    end_keepers(tmp_path / "gone")


def test_a_replica_is_read_where_it_lies_though_its_owner_s_node_is_gone(copier: Copier, tmp_path: Path) -> None:
    gang, memory = Exchange(copier.place, 1), copier.memory
    assert memory is not None
    gang.secret = SECRET
    host, port = gang._listen(memory, exchange._host())  # as of two nodes
    lost = Memory.attach(place_at(tmp_path / "gone"), PARTS)
    draft = lost.begin(7, 1)
    assert draft is not None
    draft.seal(json.dumps({"rank": 1, "world_size": 2}))
    lost.replicate(7, Peer(host=host, port=port, secret=SECRET, owner="gone"))
    eventually(lambda: any(isinstance(one, Replicated) for one in lost.news(0.1)))
    lost.close()
    (kept,) = gang.gathered(copier)
    assert kept.is_replica and kept.host == OUTSIDE
    sealed = read(kept, SECRET, ATTEMPT)
    assert sealed.steps() == (7,)
    sealed.close()


def test_a_place_whose_keeper_has_just_died_still_has_its_memory(copier: Copier) -> None:
    memory = copier.memory
    assert memory is not None
    draft = memory.begin(7, 1)
    assert draft is not None
    draft.seal(json.dumps({"rank": 0, "world_size": 1}))
    os.kill(memory.keeper_pid, signal.SIGKILL)
    eventually(memory._link.has_ended)
    assert [one.step for one in Exchange(copier.place, 0).gathered(copier)] == [7]


def test_where_there_is_no_room_for_as_many_fewer_are_fetched(
    copier: Copier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node has less memory than those of the others, whose number it does not know yet."""
    other = Memory.attach(place_at(tmp_path / "gone"), PARTS)
    snapshot(other, 7)
    peer = Peer(host=OUTSIDE, port=other.listen(OUTSIDE, SECRET), secret=SECRET, owner=other.place.key)
    fetch, asked = Memory.fetch, []

    def with_room_for_two(place: Any, peer: Any, step: Any, buffers: int, idle_s: float, generation: Any) -> Memory:
        asked.append(buffers)
        if buffers > 2:
            raise SetupError(TOO_LITTLE, buffers, "there is room for 2")
        return fetch(place, peer, step, buffers, idle_s, generation)

    monkeypatch.setattr(Memory, "fetch", with_room_for_two)
    copier.bring(peer, 7, 5)
    assert asked == [5, 4, 3, 2]
    assert copier.memory is not None and copier.memory.buffers == 2 and 7 in copier.memory.sealed()
    other.close()
