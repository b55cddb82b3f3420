"""Where a run stands in its data: one integer, and what it is a position in.

Delivered global samples are counted, never fetched ones: what a loader holds ahead is read again after a resume. Since the order is
a function, nothing else needs to be kept, for any number of ranks or loader processes, and a resume leaves nothing to clean up.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data.checked import state_of
from phalanx.job.data.draws import DataOrder
from phalanx.job.data.quarantine import ANY_SHARE, SetAside, quarantined, set_aside_of

EXTRA: Final = "data_cursor"
"""Its name among the numbers of a checkpoint."""

FORMAT: Final = 2
_UNDAMAGED: Final = 1
"""The format without a quarantine. What has none is still written so, for readers who know no other."""

_NOWHERE: Final[Mapping[str, str]] = MappingProxyType({})
_SHOWN: Final = 12
_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Saved with the weights of the same step, as one thing with them.

    delivered: global samples that the steps so far were trained on. data: manifest hash of each source that was read from. order:
    the fingerprint of the order over these samples. quarantine: damaged blocks that are not read any more, with what was read
    instead following from them; see `quarantine`.
    """

    delivered: int
    data: Mapping[str, str]
    order: str
    quarantine: tuple[SetAside, ...] = ()
    format: int = _UNDAMAGED

    @classmethod
    def after(cls, num_steps: int, order: DataOrder, manifests: Mapping[str, str]) -> "Cursor":
        """After so many steps. manifests: manifest hash of each source, by its name."""
        delivered = num_steps * order.global_batch
        read = {name: _manifest(name, manifests) for name in order.sources_read(delivered)}
        aside = set_aside_of(order)
        return cls(
            delivered=delivered,
            data=read,
            order=order.fingerprint(delivered),
            quarantine=aside,
            format=FORMAT if aside else _UNDAMAGED,
        )

    def to_json(self) -> str:
        return wire.dumps(Cursor, self)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Cursor":
        """Raises DataError for what no cursor is."""
        shown = text[:_CHARS_MAX]
        try:
            version: _Version = wire.loads(_Version, text)
            if version.format > FORMAT:
                fix = f"was written by a newer Phalanx (this one reads {FORMAT}); upgrade it"
                raise DataError("format of the data cursor", version.format, fix)
            cursor: Cursor = wire.loads(Cursor, text)
        except ValueError as error:
            raise DataError("data cursor", shown, f"is none ({error}); resume from another checkpoint") from error
        if cursor.delivered < 0:
            raise DataError("delivered", cursor.delivered, "a run cannot have read so many samples; resume from another checkpoint")
        return cursor

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Cursor":
        """Of what a loader's `state_dict` gave. Raises DataError for anything else."""
        try:
            text = json.dumps(state_of(state))
        except (TypeError, ValueError) as error:
            raise DataError("state", f"{', '.join(map(str, state))}", f"is of no such loader ({error}); give its own") from error
        return cls.from_json(text)

    def over(self, order: DataOrder) -> DataOrder:
        """The order to go on with: without what this run has set aside. Raises DataError where that is not of this order."""
        return quarantined(order, (*set_aside_of(order), *self.quarantine), ANY_SHARE)

    def next_step(self, order: DataOrder, manifests: Mapping[str, str], places: Mapping[str, str] = _NOWHERE) -> int:
        """The first step that is not done, counted from 0, under an order over data with these manifest hashes.

        places: the folder or the URL of each source, for what an error says. Raises DataError when the data that was read, or the
        order in which, are not those of this cursor.
        """
        for name, wanted in self.data.items():
            found = _manifest(name, manifests)
            if found != wanted:
                where = f"{places[name]} " if name in places else ""
                fix = f"{where}is not the data that this run has read ({wanted[:_SHOWN]}); put that back there, or start a new job"
                raise DataError(f"data of {name}", found[:_SHOWN], fix)
        if self.delivered % order.global_batch:
            fix = f"does not divide the {self.delivered} samples that this run has read; keep the global batch it began with"
            raise DataError("global_batch", order.global_batch, fix)
        if lacking := set(self.quarantine) - set(set_aside_of(order)):
            fix = "this run reads these damaged blocks no more; go on with `cursor.over(order)`"
            raise DataError("quarantine of the order", f"lacks {len(lacking)} of {len(self.quarantine)} blocks", fix)
        if (found := order.fingerprint(self.delivered)) != self.order:
            fix = (
                f"is not the order in which this run has read ({self.order[:_SHOWN]}): keep its seed, global batch, sources, "
                "weights, shuffles, packing and, of tokens, `sequence`; other weights are declared as a change from a later step on"
            )
            raise DataError("order of the data", found[:_SHOWN], fix)
        return self.delivered // order.global_batch


@dataclass(frozen=True, slots=True)
class _Version:
    """Read before all else, since a newer format may have any other field."""

    format: int


def _manifest(name: str, manifests: Mapping[str, str]) -> str:
    if name not in manifests:
        fix = f"this run has read from it and it is not there any more; there are {', '.join(sorted(manifests)) or 'none'}"
        raise DataError("source", name, fix)
    return manifests[name]
