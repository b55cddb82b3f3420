"""What a wait for a batch was for."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

Cause = Literal["start", "order", "store", "cache", "read", "verify", "decode", "transform"]
"""start: nobody had begun with the batch. order: which samples it has. store: blocks on their way from a store. cache: room for
them on the node. read: blocks from the disk. verify: their checksums. decode: tokens to int64 rows, or a sample's bytes to what
they mean. transform: what a user does with that, as augmentation."""

CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)

FAR: Final[tuple[Cause, ...]] = ("store", "cache")
"""What may last as long as a store is away."""

Span = tuple[Cause, float, float]
"""A cause with its begin and end in seconds."""

_INNER: Final = ("store", "cache", "read", "verify", "transform")


def causes(spans: Sequence[Span], began: float, ended: float) -> Mapping[Cause, float]:
    """Seconds of the wait by cause, which add up to it. `spans` are of the awaited batch; these but order lie within decode."""
    found: dict[Cause, float] = {}
    for cause, begin, end in spans:
        found[cause] = found.get(cause, 0.0) + max(0.0, min(end, ended) - max(begin, began))
    inner = sum(found.get(cause, 0.0) for cause in found if cause in _INNER)
    if "decode" in found:
        found["decode"] = max(0.0, found["decode"] - inner)
    found["start"] = max(0.0, ended - began - sum(found.values()))
    return found
