"""Replicas of a gang with real keepers, each rank on a node of its own: run by `python -m` on four ranks; `test_exchange_gang.py`
reads how each case ended. A place that is lost is a keeper that was killed, and a process that knows nothing of what was before."""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.distributed as dist

from phalanx.job.checkpoint.keeper.link import KeeperGone
from phalanx.job.checkpoint.keeper.messages import Peer
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.replicas import Kept, newest
from phalanx.job.checkpoint.rng import rng_parts
from phalanx.job.checkpoint.state import training_state
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.train.device import Rank, gang
from phalanx.job.train.regrown import State, newest_state
from phalanx.job.train.snapshots import Snapshots
from tests.job.checkpoint.checkpoint_cases import Run, _local
from tests.job.checkpoint.keeper_places import end_keepers, ends, eventually, place_at
from tests.job.checkpoint.snapshot_parts import PARTS
from tests.job.train.gang_cases import play

STEPS_MAX: Final = 200
RANKS: Final = 4


class Place:
    """One rank's, through all generations."""

    def __init__(self, root: Path, rank: Rank) -> None:
        self.rank = replace(rank, generation=1)
        self.folder = root / f"node-{rank.rank}"
        self.snapshots = self._new()
        self.run = Run(self.rank)
        self.at = 0
        self.states: dict[int, dict[str, torch.Tensor]] = {}

    def _new(self) -> Snapshots:
        return Snapshots(place_at(self.folder), idle_s=60.0, replicas=1)

    def step(self, count: int = 1) -> None:
        """Each with what it sends, if anything, sent or refused."""
        for _ in range(count):
            self.at += 1
            self.run.steps(self.at, self.at)
            self.states[self.at] = copied(self.run)
            self.snapshots.take(self.run.model, self.run.optimizer, self.rank, self.at, {})
            self.snapshots.settle()
            eventually(self._is_quiet)

    def _is_quiet(self) -> bool:
        self.snapshots.copier.hear(0.05)
        return not self.memory.is_replicating

    @property
    def memory(self) -> Memory:
        memory = self.snapshots.copier.memory
        assert memory is not None
        return memory

    @property
    def agreed(self) -> int:
        return self.snapshots._exchange.agreed

    def until_agreed(self, after: int = 0) -> int:
        """Steps until every rank has a replica of a step after that one; that step."""
        for _ in range(STEPS_MAX):
            self.step()
            if self.agreed > after:
                return self.agreed
        raise AssertionError(f"no replicas of a step after {after}, but of {self.agreed}")

    def replicated(self) -> int:
        """The newest step of which every rank has a replica, with none on its way."""
        self.until_agreed()
        with cut():
            self.step()
        return self.agreed

    def lose(self, *ranks: int, keepers: bool = True) -> None:
        """The processes of these ranks end, and their keepers."""
        if self.rank.rank in ranks:
            pid = self.memory.keeper_pid
            self.snapshots.copier.leave()
            if keepers:
                os.kill(pid, signal.SIGKILL)
                ends(pid)
            self.snapshots = self._new()
        dist.barrier()

    def recover(self) -> State | None:
        """The next generation, and what it goes on from."""
        self.rank = replace(self.rank, generation=self.rank.generation + 1)
        self.snapshots.new_model()
        self.run = Run(self.rank, seed=9)
        lost: list[Any] = []
        while (state := newest_state(self.snapshots, self.rank, lost)) is not None:
            if state.restore(self.run.model, self.run.optimizer):
                self.at = state.step
                assert same(copied(self.run), self.states[self.at]), "bit for bit"
                state.stays_elsewhere()
                return state
            lost.append(state.at)
        return None

    def everything(self) -> list[Kept]:
        return self.snapshots.gathered()

    def close(self) -> None:
        dist.barrier()
        self.snapshots.close()
        dist.barrier()
        end_keepers(self.folder)


def copied(run: Run) -> dict[str, torch.Tensor]:
    return {name: _local(tensor).clone() for name, tensor in training_state(run.model, run.optimizer).items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@contextmanager
def cut(is_cut: Callable[[Peer], bool] = lambda peer: True) -> Iterator[None]:
    """Keepers that would be called are not reached from here: nobody listens where this rank's keeper calls."""
    real = Memory.replicate
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        nowhere = unheard.getsockname()[1]

        def replicate(memory: Memory, step: int, peer: Peer, *more: Any, **other: Any) -> None:
            real(memory, step, replace(peer, port=nowhere) if is_cut(peer) else peer, *more, **other)

        with patch.object(Memory, "replicate", replicate):
            yield


def check_outlives_any_node(kept: list[Kept], step: int) -> None:
    nodes = {one.node for one in kept}
    assert len(nodes) == RANKS
    for lost in sorted(nodes):
        at = newest(one for one in kept if one.node != lost)
        assert at is not None and at.step >= step, f"without {lost}: {at}"


def case_a_round_that_failed_for_one_rank_counts_for_none(root: Path, rank: Rank) -> None:
    """Which rank fails changes: of no step but the first all have a replica, though each rank has newer ones."""
    place = Place(root, rank)
    first = place.replicated()
    for culprit in (0, 1, 2, 0, 1, 3, 0):
        with cut() if culprit == rank.rank else nullcontext():
            place.step(2)
        agreed, kept = told_by_all(place.agreed), place.everything()
        assert agreed == [first] * RANKS, agreed
        check_outlives_any_node(kept, first)
    assert place.until_agreed(first) > first, "and goes on once all are reached"
    check_outlives_any_node(place.everything(), place.agreed)
    place.close()


def case_a_holder_that_one_rank_cannot_reach_is_not_its_holder_for_long(root: Path, rank: Rank) -> None:
    place = Place(root, rank)
    first = place.until_agreed()
    port = told_by_all(place.memory.port)[1]
    with cut(lambda peer: rank.rank == 0 and peer.port == port):
        again = place.until_agreed(first)
        assert place.until_agreed(again) > again
    kept = place.everything()
    check_outlives_any_node(kept, again)
    held = {one.owner: one.holder for one in kept if one.is_replica and one.step == place.agreed}
    assert held[place_at(root / "node-0").key] == place_at(root / "node-2").key
    place.close()


def case_a_keeper_that_comes_back_at_another_port_is_sent_to_there(root: Path, rank: Rank) -> None:
    place = Place(root, rank)
    first = place.until_agreed()
    with socket.socket() as other:
        if rank.rank == 1:
            host, port = place.memory.host, place.memory.port
            os.kill(place.memory.keeper_pid, signal.SIGKILL)
            ends(place.memory.keeper_pid)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            eventually(lambda: is_bound(other, host, port))  # its other threads may end after the first
            other.listen()
            Thread(target=hang_up, args=(other,), daemon=True).start()
        dist.barrier()
        again = place.until_agreed(first)
        assert place.until_agreed(again) > again
    check_outlives_any_node(place.everything(), again)
    place.close()


def case_a_keeper_that_could_not_listen_at_first_is_asked_again(root: Path, rank: Rank) -> None:
    def gone(*_: object) -> int:
        raise KeeperGone("it was just being replaced")

    place = Place(root, rank)
    with patch.object(Memory, "listen", gone) if rank.rank == 2 else nullcontext():
        place.step()
    assert [bool(port) for port in told_by_all(place.memory.port)] == [True, True, False, True]
    agreed = place.until_agreed()
    check_outlives_any_node(place.everything(), agreed)
    place.close()


def case_a_place_that_is_lost_again_before_it_has_new_replicas_comes_back_from_the_old_ones(root: Path, rank: Rank) -> None:
    place = Place(root, rank)
    agreed = place.until_agreed()
    place.lose(1)
    back = place.recover()
    assert back is not None and back.step >= agreed
    with cut():
        place.step(10)
    place.lose(1)
    again = place.recover()
    assert again is not None and (again.step, again.at.generation) == (back.step, 1)
    place.until_agreed()
    place.close()


def case_a_node_that_is_lost_after_another_rank_s_process_was_costs_no_checkpoint(root: Path, rank: Rank) -> None:
    """The first fault is healed from each place's own memory, which is newer than the replicas. Those go on being of use."""
    place = Place(root, rank)
    agreed = place.replicated()
    with cut():
        place.step(3)
        place.lose(0, keepers=False)
        back = place.recover()
        assert back is not None and back.step == place.at > agreed + 3
        place.step(10)
        place.lose(2)
    again = place.recover()
    assert again is not None and again.step == agreed
    place.until_agreed()
    place.close()


def case_what_a_generation_goes_on_from_is_replicated_before_its_first_step(root: Path, rank: Rank) -> None:
    place = Place(root, rank)
    place.until_agreed()
    with cut():
        place.step(2)
    place.lose(0, keepers=False)
    back = place.recover()
    assert back is not None
    held = [*place.snapshots.live(place.run.model, place.run.optimizer).held(), *rng_parts(rank.rank, rank.device)]
    place.snapshots.fit([part for part, _ in held])  # as a trainer does, before it trains
    eventually(place._is_quiet)
    dist.barrier()
    check_outlives_any_node(place.everything(), back.step)
    place.step(1)
    assert place.agreed == back.step
    place.close()


def case_two_that_die_at_once_come_back_from_the_others(root: Path, rank: Rank) -> None:
    place = Place(root, rank)
    agreed = place.until_agreed()
    place.lose(0, 2)
    back = place.recover()
    assert back is not None and back.step >= agreed
    place.until_agreed()
    place.close()


def case_where_both_copies_of_a_rank_are_lost_one_line_says_so(root: Path, rank: Rank) -> None:
    place = Place(root, rank)
    place.until_agreed()
    place.lose(1, 2)  # the second held what the first had
    with warnings_of("phalanx.job.train.regrown") as said:
        assert place.recover() is None
    wanted = (
        "no state of the whole gang is in memory (nothing of generation 1 is left of rank 1, neither its own memory nor a "
        "replica): the newest complete checkpoint counts"
    )
    assert said == ([wanted] if rank.rank == 0 else []), said
    place.step(2)
    place.until_agreed()
    place.close()


def case_a_state_that_lies_beside_memory_of_other_parts_is_found_there(root: Path, rank: Rank) -> None:
    """A fault while a gang of another size was about to take its memory."""
    place = Place(root, rank)
    place.step(3)
    if rank.rank == 3:
        place.snapshots.copier.leave()
        place.snapshots.copier.begin_fit(PARTS, 2)
        place.snapshots.copier.end_fit()
    dist.barrier()
    back = place.recover()
    assert back is not None and back.step == 3
    place.until_agreed()
    place.close()


def case_what_dies_while_it_takes_its_state_back_costs_nothing_more(root: Path, rank: Rank) -> None:
    """Once after its keeper had fetched the replica, once with its keeper."""
    place = Place(root, rank)
    agreed = place.until_agreed()
    place.lose(1)
    for keepers in (False, True):
        kept = place.snapshots.gathered()
        at = newest(kept)
        assert at is not None and at.step >= agreed
        place.snapshots.recall(kept, at)  # and no more
        place.rank = replace(place.rank, generation=place.rank.generation + 1)
        place.lose(1, keepers=keepers)
    back = place.recover()
    assert back is not None and back.step >= agreed
    place.until_agreed()
    place.close()


def hang_up(other: socket.socket) -> None:
    """On whoever calls, until it is closed."""
    with suppress(OSError):
        while True:
            other.accept()[0].close()


def is_bound(other: socket.socket, host: str, port: int) -> bool:
    with suppress(OSError):
        other.bind((host, port))
        return True
    return False


@contextmanager
def warnings_of(name: str) -> Iterator[list[str]]:
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener, log = Listener(logging.WARNING), logging.getLogger(name)
    log.addHandler(listener)
    try:
        yield said
    finally:
        log.removeHandler(listener)


def main(folder: Path, chosen: Sequence[str]) -> None:
    with gang() as rank:
        play(globals(), folder, lambda case, own: case(own, rank), chosen)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
