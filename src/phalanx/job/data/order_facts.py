"""An order in JSON, so that who was not there can make it again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data.draws import DataOrder, PlainOrder
from phalanx.job.data.mixed import MixedOrder
from phalanx.job.data.mixture import Mixture
from phalanx.job.data.quarantine import Quarantined


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFacts:
    """One of both. Without what is set aside, which changes as a run goes on."""

    plain: PlainOrder | None = None
    mixed: "MixedFacts | None" = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the sources, in the order in which they are numbered."""
        if self.mixed is not None:
            return tuple(one.name for one in self.mixed.mixture.sources)
        return self.plain.names if self.plain is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedFacts:
    """What `MixedOrder` takes."""

    mixture: Mixture
    sizes: Mapping[str, int]
    seed: int
    global_batch: int
    cuts: Mapping[str, str]


def facts_of(order: DataOrder) -> OrderFacts:
    """Raises DataError for an order that is none of ours."""
    match order:
        case Quarantined():
            return facts_of(order.order)
        case PlainOrder():
            return OrderFacts(plain=order)
        case MixedOrder():
            sizes = dict(zip(order.names, order.sizes.tolist(), strict=True))
            return OrderFacts(mixed=MixedFacts(
                mixture=order.mixture, sizes=sizes, seed=order.seed, global_batch=order.global_batch, cuts=order.cuts
            ))  # fmt: skip
    raise DataError("order", type(order).__name__, "cannot be written down; read in a PlainOrder or a MixedOrder")


def order_from(facts: OrderFacts) -> DataOrder:
    """The reverse of `facts_of`. Raises DataError for facts of no order."""
    if facts.plain is not None:
        return facts.plain
    if facts.mixed is None:
        raise DataError("order", "none", "the record of deliveries names no order; it was not written by this version")
    mixed = facts.mixed
    return MixedOrder(mixed.mixture, mixed.sizes, seed=mixed.seed, global_batch=mixed.global_batch, cuts=mixed.cuts)


def plain_facts(order: DataOrder) -> dict[str, Any]:
    """Ready for JSON."""
    facts: dict[str, Any] = wire.plain(OrderFacts, facts_of(order))
    return facts
