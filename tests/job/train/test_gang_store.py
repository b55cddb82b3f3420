"""torch on top of the gang's store: its own methods, and three generations of gloo groups and meshes in the same processes."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from phalanx.job.sdk.gang_link import StoreLink
from phalanx.job.train.gang_store import GangStore
from tests.operate.agent.gang.coordinator_cell import TOKEN, Cell, running


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    with running(tmp_path) as cell:
        yield cell


@pytest.fixture
def store(cell: Cell) -> Iterator[GangStore]:
    made = GangStore(StoreLink(cell.address, TOKEN, 0), timedelta(seconds=30))
    yield made
    made.close()


def test_it_answers_as_torchs_own_store_does(store: GangStore) -> None:
    for other in (dist.HashStore(), store):  # type: ignore[attr-defined]  # exported without saying so
        behind: Any = PrefixStore("p", other)
        behind.set("a", "text")
        assert behind.get("a") == b"text"
        assert behind.add("n", 2) == 2
        assert behind.add("n", 3) == 5
        assert behind.get("n") == b"5"
        assert behind.check(["a", "n"])
        assert not behind.check(["a", "absent"])
        assert behind.compare_set("a", "text", "new") == b"new"
        assert behind.compare_set("a", "text", "newer") == b"new"
        assert behind.delete_key("a")
        assert not behind.check(["a"])
        behind.multi_set(["x", "y"], ["1", "2"])
        assert behind.multi_get(["x", "y"]) == [b"1", b"2"]
        behind.append("x", "0")
        assert behind.get("x") == b"10"
        behind.wait(["x"], timedelta(seconds=1))
        with pytest.raises(dist.DistStoreError):
            behind.wait(["never"], timedelta(milliseconds=20))
    assert sorted(store.list_keys()) == ["p/n", "p/x", "p/y"]
    assert store.num_keys() == PrefixStore("p", store).num_keys() == 3


def test_a_wait_in_one_thread_does_not_hold_up_another_and_ends_when_closed(store: GangStore) -> None:
    begun = threading.Event()

    def wait(key: str) -> None:
        begun.set()
        store.wait([key])

    with ThreadPoolExecutor() as pool:
        waiting, for_ever = pool.submit(wait, "k"), pool.submit(wait, "never")
        begun.wait(60)
        store.set("k", b"")
        waiting.result(60)
        store.close()
        with pytest.raises(dist.DistStoreError):
            for_ever.result(60)


def test_three_generations_of_gloo_groups_and_meshes_in_the_same_processes(cell: Cell) -> None:
    script = str(Path(__file__).with_name("gang_store_cases.py"))
    ranks = [
        subprocess.Popen([sys.executable, script, cell.address, TOKEN, str(rank)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    ends = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(ends)
