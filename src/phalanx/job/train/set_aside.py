"""What a run sets aside of its data, as facts that become events of the job."""

from collections.abc import Sequence
from itertools import groupby

from phalanx.job.data.quarantine import SetAside, num_samples
from phalanx.job.sdk.session import Session


def tell_set_aside(session: Session, step: int, found: Sequence[SetAside]) -> None:
    """One fact for each shard, since blocks from a store come, and go, several at once."""
    for (source, shard), blocks in groupby(sorted(found, key=_place), key=lambda one: (one.source, one.shard)):
        held = list(blocks)
        session.damaged(step=step, source=source, shard=shard, blocks=tuple(one.block for one in held), samples=num_samples(held))


def _place(one: SetAside) -> tuple[str, str, int]:
    return one.source, one.shard, one.block
