"""The trainer with one fault built in that no environment variable can bring about; `python -m` with the fault's name."""

import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from phalanx.job.checkpoint.keeper.place import Place
from phalanx.job.checkpoint.memory import Memory
from phalanx.job.checkpoint.restore import load
from phalanx.job.checkpoint.shard_file import Part
from phalanx.job.checkpoint.state import training_state
from phalanx.job.models.llama import Llama
from phalanx.job.sdk.session import Session
from phalanx.job.train import __main__ as trainer
from phalanx.job.train import resumed, setup
from phalanx.job.train.batches import train_batches
from phalanx.job.train.device import Rank
from phalanx.job.train.finish import finish

DEADLY_STEP = 7
DISK_BYTES = 16_384
POISONED_STEP = 47
UNSEEN = 250
"""The byte 0xF8 or thereabouts: never part of a text in UTF-8."""


def killed_between_fetch_and_update() -> None:
    """Rank 1 dies once the batch of DEADLY_STEP, and the one after it as a prefetch would, were delivered and not trained on."""

    def batches(*arguments: Any) -> Callable[[int], Tensor]:
        fetch = train_batches(*arguments)

        def deadly(step: int) -> Tensor:
            batch = fetch(step)
            if step == DEADLY_STEP and os.environ["RANK"] == "1":
                fetch(step + 1)
                os.kill(os.getpid(), signal.SIGKILL)
            return batch

        return deadly

    patch.object(setup, "train_batches", batches).start()


def poisoned_rows() -> None:
    """In POISONED_STEP all rows of rank 1 are one token over and over that the text never has, as a broken file may bring them."""
    patch.object(setup, "train_batches", _poisoning(train_batches)).start()


def unreadable_rows() -> None:
    """The same, and the model's answer to them is no number."""
    poisoned_rows()
    forward = Llama.forward

    def forward_or_nan(model: Llama, ids_bs: Tensor) -> Tensor:
        logits_bsv = forward(model, ids_bs)
        broken_b = (ids_bs == UNSEEN).all(dim=1)
        return torch.where(broken_b[:, None, None], torch.nan, logits_bsv)

    patch.object(Llama, "forward", forward_or_nan).start()


def _poisoning(make: Callable[..., Callable[[int], Tensor]]) -> Callable[..., Callable[[int], Tensor]]:
    def batches(*arguments: Any) -> Callable[[int], Tensor]:
        fetch = make(*arguments)

        def poisoned(step: int) -> Tensor:
            batch = fetch(step)
            if step == POISONED_STEP and os.environ["RANK"] == "1":
                batch.fill_(UNSEEN)
            return batch

        return poisoned

    return batches


def changed_by_loading() -> None:
    """Rank 1 finds one bit of one weight other than it was saved."""

    def load_and_change(*arguments: Any) -> Any:
        found = load(*arguments)
        if os.environ["RANK"] == "1":
            parameter = next(arguments[2].parameters())
            assert isinstance(parameter, DTensor)
            parameter.to_local().detach().view(torch.int32)[0, 0] ^= 1
        return found

    patch.object(resumed, "load", load_and_change).start()


def another_replica() -> None:
    """Rank 2 counts the updates of one parameter otherwise than its peers, which all hold that number."""

    def state_and_more(*arguments: Any) -> dict[str, Tensor]:
        state = training_state(*arguments)
        if os.environ["RANK"] == "2":
            name = next(name for name, value in state.items() if not isinstance(value, DTensor))
            state[name] = state[name] + 1
        return state

    patch.object(resumed, "training_state", state_and_more).start()


def disk_full_at_the_end() -> None:
    """The model does not fit; a file size limit plays the full disk."""

    def limited(*arguments: Any) -> Path:
        resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_BYTES, resource.RLIM_INFINITY))
        return finish(*arguments)

    patch.object(trainer, "finish", limited).start()


def without_a_folder() -> None:
    """A file takes the place of the checkpoints, after they were claimed."""
    claim = setup.claim

    def claim_and_lose(session: Session, rank: Rank) -> None:
        claim(session, rank)
        if rank.rank == 0:
            folder = Path(session.job_dir) / "checkpoints"
            folder.rename(folder.with_name("aside"))
            folder.write_text("a file where a folder is needed")

    patch.object(setup, "claim", claim_and_lose).start()


def little_memory() -> None:
    """Rank 1's node has next to no memory left."""
    if os.environ["RANK"] == "1":
        attach = Memory.attach
        huge = Part(name="huge", dtype="U8", shape=(1 << 46,), start=(0,), size=(1 << 46,))

        def attach_more(place: Place, parts: Sequence[Part], *more: Any, **words: Any) -> Memory:
            return attach(place, [*parts, huge], *more, **words)

        patch.object(Memory, "attach", attach_more).start()


if __name__ == "__main__":
    faults = (
        killed_between_fetch_and_update,
        disk_full_at_the_end,
        little_memory,
        without_a_folder,
        poisoned_rows,
        unreadable_rows,
        changed_by_loading,
        another_replica,
    )
    {fault.__name__: fault for fault in faults}[sys.argv[1]]()
    os._exit(trainer.main(["llama"]))
