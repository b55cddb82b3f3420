"""What becomes of a run whose data turns out to be damaged, step by step and on every rank alike."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, get_args

from phalanx.core.errors import DataError
from phalanx.core.training_data import OnBadData
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.checked import fraction, shown, unknown
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.draws import DataOrder
from phalanx.job.data.quarantine import SHARE_MAX, Quarantined, SetAside, Touching, num_samples, set_aside_of

_log: Final = logging.getLogger(__name__)
T = TypeVar("T")

Agree = Callable[[Sequence[Block]], Sequence[Block]]
"""From the damaged blocks that this rank met in a step to those of all ranks. A collective: each rank asks once for each try at a
step, before any of them uses the batch."""


def alone(blocks: Sequence[Block]) -> Sequence[Block]:
    """Of a run with one rank."""
    return blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class BadData:
    """The policy. `stop`: the error ends the run. `quarantine`: the block is set aside as of the step that met it, on every rank.

    share_max: of the samples of a source, that may be. agree: how ranks tell each other; None where there is one rank. told: of
    what was set aside anew, as of a step, counted from 1; besides a line in the log.
    """

    policy: OnBadData = "stop"
    share_max: float = SHARE_MAX
    agree: Agree | None = None
    told: Callable[[int, Sequence[SetAside]], object] | None = None

    def __post_init__(self) -> None:
        if self.policy not in get_args(OnBadData):
            raise unknown("policy", self.policy, get_args(OnBadData))
        if not 0 <= fraction("share_max", self.share_max) < 1:
            raise DataError("share_max", self.share_max, "write a number from 0 up to, but not, 1")


STOP: Final = BadData()


def tried(read: Callable[[], T]) -> tuple[T | None, BadBlock | None]:
    """What it gives, or the damage that it met, for `SoundOrder.changed_by`."""
    try:
        return read(), None
    except BadBlock as error:
        return None, error


class SoundOrder:
    """One rank's order, from which goes out what cannot be read. order: as it is now.

    touching: the stretches of samples that need a block, by source. Raises DataError for several ranks that could not agree.
    """

    def __init__(
        self, order: DataOrder, touching: Callable[[Block], Touching], bad_data: BadData = STOP, world_size: int = 1
    ) -> None:
        if not isinstance(bad_data, BadData):
            raise DataError("bad_data", shown(bad_data), "give a policy, such as BadData(policy='quarantine') of `job.data.sound`")
        if bad_data.policy == "quarantine" and world_size > 1 and bad_data.agree is None:
            fix = f"{world_size} ranks must set the same blocks aside; give `agree`, such as `agree.on_bad_blocks`"
            raise DataError("agree", None, fix)
        self._base = order.order if isinstance(order, Quarantined) else order
        self.order = order
        self._touching = touching
        self._bad_data = bad_data
        self._agree = bad_data.agree or alone

    def resume(self, cursor: Cursor) -> None:
        """Sets aside what the cursor's run had set aside, and that alone. Raises DataError where that is not of this order."""
        self.order = cursor.over(self._base)

    def changed_by(self, met: BadBlock | None, step: int) -> bool:
        """Whether the batch of a step, counted from 0, which no rank has used, has to be read again, since some rank has met damage
        in it: then `order` does without. met: by this rank. A collective of all ranks where the policy is quarantine.

        Raises `met` where it is to stop, and, on every rank, DataError where too much of a source would be set aside.
        """
        if self._bad_data.policy == "stop":
            if met is not None:
                raise met
            return False
        blocks = sorted(set(self._agree(met.blocks if met is not None else ())))
        if not blocks:
            return False
        before = Quarantined(self.order, set_aside_of(self.order), self._bad_data.share_max)
        after = before.also({block: self._touching(block) for block in blocks}, step)
        new = set(after.set_aside) - set(before.set_aside)
        if not new:  # nothing of this order needs it, so reading again would meet it again
            raise met or DataError("block", blocks[0].shard, "another rank cannot read it, and no sample of this order needs it")
        if met is not None:
            _log.warning("%s", met.sentence())  # which says what it is about the block, and of which sample
        found = [one for one in after.set_aside if one in new]
        for one in found:
            what = f"block {one.block} of shard {one.shard[:12]} of {one.source} is damaged"
            lost = num_samples([one])
            _log.warning("%s: from step %d on other samples stand in for the %d that need it", what, step + 1, lost)
        if self._bad_data.told is not None:
            self._bad_data.told(step + 1, found)
        self.order = after
        return True
