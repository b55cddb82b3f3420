"""Token buckets: so much at once, so much a second for ever. Pure but for what it remembers; time is an argument."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

KEYS_MAX: Final = 10_000
"""Remembered at once: a flood from many addresses must not become a flood of memory."""


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float


class Buckets:
    """One bucket a key, full when it is first asked for. Not thread-safe."""

    def __init__(self, per_s: float, burst: float, keys_max: int = KEYS_MAX) -> None:
        self._per_s = per_s
        self._burst = burst
        self._keys_max = keys_max
        self._known: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, key: str, now_s: float) -> float:
        """Takes one: 0.0, or else nothing is taken and it is the seconds until there is one. now_s: monotonic; a clock that went
        back adds nothing."""
        bucket = self._known.pop(key, None) or _Bucket(self._burst, now_s)
        bucket.left = min(self._burst, bucket.left + max(0.0, now_s - bucket.at_s) * self._per_s)
        bucket.at_s = max(bucket.at_s, now_s)
        self._known[key] = bucket
        while len(self._known) > self._keys_max:  # the one that was asked for longest ago: most likely it is full again
            self._known.popitem(last=False)
        if bucket.left >= 1.0:
            bucket.left -= 1.0
            return 0.0
        return (1.0 - bucket.left) / self._per_s
