"""What a run sets aside of its data, as facts that become events of the job, and in the lineage of its model."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from phalanx.job.data.quarantine import SetAside, num_samples
from phalanx.job.sdk.session import Session

_LINEAGE: Final = "data_set_aside"
_SHOWN: Final = 12
_NAMED: Final = 20
"""Finds of a source; a run has room for a hundred blocks in all."""


def tell_set_aside(session: Session, step: int, found: Sequence[SetAside]) -> None:
    """One fact for each shard, since blocks from a store come, and go, several at once."""
    for (source, shard), blocks in groupby(sorted(found, key=_place), key=lambda one: (one.source, one.shard)):
        held = list(blocks)
        session.damaged(step=step, source=source, shard=shard, blocks=tuple(one.block for one in held), samples=num_samples(held))


def _place(one: SetAside) -> tuple[str, str, int]:
    return one.source, one.shard, one.block


def set_aside_lineage(found: Sequence[SetAside], global_batch: int) -> dict[str, str]:
    """For a model's lineage: how much its run did not read, and of each source which blocks, from which step on."""
    if not found:
        return {}
    sources = {name: list(held) for name, held in groupby(sorted(found, key=_place), key=lambda one: one.source)}
    lost = ", ".join(f"{num_samples(held)} samples of {name}" for name, held in sources.items())
    total = f"{len(found)} block{'s' if len(found) != 1 else ''}, for {lost}"
    return {_LINEAGE: total, **{f"{_LINEAGE}.{name}": _blocks(held, global_batch) for name, held in sources.items()}}


def _blocks(held: Sequence[SetAside], global_batch: int) -> str:
    """Of one source."""
    parts = []
    for (shard, since), blocks in groupby(sorted(held, key=_found), key=lambda one: (one.shard, one.since)):
        numbers = [one.block for one in blocks]
        named = f"block{'s' if len(numbers) > 1 else ''} {_ranges(numbers)}"
        parts.append(f"shard {shard[:_SHOWN]} {named} from step {since // global_batch + 1}")
    more = [f"and {len(parts) - _NAMED} more"] if len(parts) > _NAMED else []
    return "; ".join([*parts[:_NAMED], *more])


def _found(one: SetAside) -> tuple[str, int, int]:
    return one.shard, one.since, one.block


def _ranges(numbers: Sequence[int]) -> str:
    """'3, 8-10' of ascending numbers."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda at: at[1] - at[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
