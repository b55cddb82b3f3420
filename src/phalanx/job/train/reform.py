"""A gang that recovers inside, as a trainer uses it: `in_generations` runs a body in each generation until one ends well.

The body builds its mesh, model and optimizer anew each time (ADR 20): what it kept of the last generation's is dead. It says
`gang.settled()` when it can train, and `gang.moved(step, mark)` as it goes on.
"""

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from phalanx.core.errors import PhalanxError
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.sdk.gang import LOST_PATIENCE_S, Gang, Place
from phalanx.job.sdk.gang_link import GangGone
from phalanx.job.train.connections import Connections
from phalanx.job.train.device import Rank, backend_of, prepare_device, this_rank
from phalanx.job.train.gang_store import GangStore

_log: Final = logging.getLogger(__name__)
T = TypeVar("T")


class Rest(Exception):
    """This generation comes out after a step, so that a larger one can go on."""


class Over(Exception):
    """This generation is over, as was heard outside of a collective."""


def rest_if_asked(gang: Gang, rank: Rank, is_kept: Callable[[], bool]) -> None:
    """After a step, in a gang that has not all its ranks: raises Rest where the coordinator has places for more, once the state
    after this step is in the memory of every rank. is_kept: waits for this rank's copy, and says whether it is there.

    A collective of all ranks; nothing in a whole gang.
    """
    if rank.world_size == rank.whole_size or not _any(gang.is_asked_to_rest()):
        return
    if not _any(not is_kept()):
        raise Rest


def in_generations(gang: Gang, body: Callable[[Rank, Place], T]) -> T:
    """What `body` returns in the generation that ends well. An error of `body` whose generation is over is that generation's: the
    next one begins. Any other is raised. Raises GangGone when there will be no other generation."""
    gc.freeze()  # what was imported until now is never looked through again: a survivor has no time for that
    while True:
        place = gang.take_part()
        if place.generation > 1:
            _log.info("generation %d of the gang, after: %s", place.generation, place.why)
        try:
            with joined(gang, place) as rank:
                return body(rank, place)
        except GangGone:
            raise
        except Rest:
            gang.when_over(lambda: None)  # nobody is in a collective any more: there is nothing to end
            _log.info("generation %d comes out: the gang has places for more ranks", place.generation)
        except Exception as error:
            # An error that says what to change is no broken collective: the word of a death is not waited for.
            if not gang.is_over(0.0 if isinstance(error, PhalanxError) else LOST_PATIENCE_S):
                raise
            _log.warning("generation %d is over: %s", place.generation, str(error).partition("\n")[0])
        finally:
            _drop_groups()


@contextmanager
def joined(gang: Gang, place: Place) -> Iterator[Rank]:
    """This process in the process group of its generation, which meets in the gang's own store."""
    device = prepare_device()
    timeout = timedelta(milliseconds=gang.timeouts.collective_ms)
    store, connections = GangStore(gang.store(), timeout), Connections()
    gang.when_over(lambda: _leave(store, connections))
    try:
        dist.init_process_group(
            backend_of(device),
            store=PrefixStore(place.prefix, store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
        connections.made()
        yield this_rank(device, place.generation, place.slots, place.num_slots)
        dist.barrier()  # nobody closes its side while another still reads
    finally:
        store.close()


def shared_step(mine: tuple[int, ...]) -> int | None:
    """The newest step of which every rank has the state; None when there is none. A collective of all ranks."""
    first, *others = told_by_all(mine)
    return max(set(first).intersection(*others), default=None)


def _any(mine: bool) -> bool:
    """Whether any rank says so, on every rank; over gloo."""
    said = torch.tensor(int(mine), dtype=torch.int32)
    dist.all_reduce(said, dist.ReduceOp.MAX)
    return bool(said.item())


def _leave(store: GangStore, connections: Connections) -> None:
    """In another thread than the one that may be blocked in a collective of that generation."""
    store.close()
    if dist.is_initialized() and dist.get_backend() != "gloo":  # NCCL's operations end by this alone
        with contextlib.suppress(RuntimeError, AttributeError, ValueError):
            dist.group.WORLD.abort()  # type: ignore[union-attr]  # None only before init_process_group
    connections.shut_down()  # after the abort: NCCL closes its own, and is not disturbed in it


def _drop_groups() -> None:
    """And the dead model with them: it is made of circles, and its memory is needed."""
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
    gc.collect()
