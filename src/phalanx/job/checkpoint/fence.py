"""Who may commit into a folder of checkpoints: the newest attempt and generation of the job, from its start on. No torch.

Rank 0 of an attempt writes `attempt.json` when it starts, so that one which was given up is refused before the newer has saved
anything; every commit looks again. Two attempts of one job are ordered by number; others have no order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from phalanx.core import wire
from phalanx.core.checkpoints import FENCE
from phalanx.core.errors import CheckpointError, StoreUnavailable
from phalanx.core.ids import AttemptId, split_attempt
from phalanx.job.checkpoint.folder import Folder, Refused, Unreadable, Where, folder_at

_BYTES_MAX: Final = 64 * 1024
_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """attempt: '' outside Phalanx, where nothing is fenced. generation: of the attempt's gang, counted up by in-gang recovery."""

    attempt: str = ""
    generation: int = 0


def hold(root: Where, holder: Holder, seen: Iterable[Holder] = ()) -> None:
    """Takes or keeps the right to commit under `root`. seen: makers of what lies there, asked for unless it has it.

    Raises CheckpointError when a newer attempt or generation has it, SetupError or StoreUnavailable when it cannot be read or
    written, or changes hands again and again.
    """
    if not holder.attempt:
        return
    folder = folder_at(root)
    for _ in range(_TRIES):
        version = folder.version(FENCE)
        noted = _noted(folder) if version is not None else []
        if noted == [holder]:
            return
        for other in (*noted, *seen):
            if newer(other, holder):
                raise _fenced(other, holder)
        if folder.swap(FENCE, wire.dumps(Holder, holder).encode(), version):
            return
    raise StoreUnavailable(f"{folder}: others take the right to write as well; try again")


def _fenced(other: Holder, holder: Holder) -> CheckpointError:
    fix = (
        f"a newer attempt holds the job's checkpoints, so {holder.attempt} may write no more; nothing of them was changed"
        if other.attempt != holder.attempt
        else f"generation {other.generation} of the gang holds them, so generation {holder.generation} may write no more"
    )
    return CheckpointError("checkpoints", other.attempt, fix)


def newer(one: Holder, other: Holder) -> bool:
    try:
        (job, number), (other_job, other_number) = (split_attempt(AttemptId(who.attempt)) for who in (one, other))
    except ValueError:  # '' among others
        return False
    return job == other_job and (number, one.generation) > (other_number, other.generation)


def _noted(folder: Folder) -> list[Holder]:
    """What is missing or makes no sense says nothing, and is written anew. Raises StoreUnavailable where a disk would not read it:
    it may well name a newer holder."""
    try:
        return [wire.loads(Holder, folder.read(FENCE, _BYTES_MAX))]
    except Refused as error:
        raise StoreUnavailable(f"{folder}/{FENCE} {error}") from error
    except (Unreadable, ValueError):
        return []
