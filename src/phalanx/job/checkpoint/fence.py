"""Who may commit into a folder of checkpoints: the newest attempt and generation of the job, from its start on. No torch.

Rank 0 of an attempt writes `attempt.json` when it starts, so that one which was given up is refused before the newer has saved
anything; every commit looks again. Two attempts of one job are ordered by number; others have no order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from phalanx.core import wire
from phalanx.core.checkpoints import FENCE
from phalanx.core.errors import CheckpointError
from phalanx.core.ids import AttemptId, split_attempt
from phalanx.storage.atomic import write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """attempt: '' outside Phalanx, where nothing is fenced. generation: of the attempt's gang, counted up by in-gang recovery."""

    attempt: str = ""
    generation: int = 0


def hold(root: Path, holder: Holder, seen: Iterable[Holder] = ()) -> None:
    """Takes or keeps the right to commit under `root`. seen: makers of what lies there.

    Raises CheckpointError when a newer attempt or generation has it, SetupError or StoreUnavailable when it cannot be written.
    """
    if not holder.attempt:
        return
    noted = _noted(root)
    for other in (*seen, *noted):
        if newer(other, holder):
            fix = (
                f"a newer attempt holds the job's checkpoints, so {holder.attempt} may write no more; nothing of them was changed"
                if other.attempt != holder.attempt
                else f"generation {other.generation} of the gang holds them, so generation {holder.generation} may write no more"
            )
            raise CheckpointError("checkpoints", other.attempt, fix)
    if noted != [holder]:
        write_atomic(root / FENCE, wire.dumps(Holder, holder).encode())


def newer(one: Holder, other: Holder) -> bool:
    try:
        (job, number), (other_job, other_number) = (split_attempt(AttemptId(who.attempt)) for who in (one, other))
    except ValueError:  # '' among others
        return False
    return job == other_job and (number, one.generation) > (other_number, other.generation)


def _noted(root: Path) -> list[Holder]:
    """What cannot be read says nothing, and is written anew."""
    try:
        return [wire.loads(Holder, (root / FENCE).read_bytes())]
    except (OSError, ValueError):
        return []
