"""The gang's key-value store: what `torch.distributed.Store` promises, without a thread and without a clock of its own.

It outlives every rank, so that rank 0 is a rank like any other. A request that waits for keys is answered when they are there or
when its time is over; generations keep apart by a prefix of their keys (`PrefixStore`), and what old ones left is dropped.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from phalanx.core.gang_wire import Frame

BYTES_MAX: Final = 256 * 1024 * 1024
KEYS_MAX: Final = 1_000_000
NEVER_MS: Final = 2**62


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits for `keys` until `until_ms`; with `values` its answer is what they hold."""

    who: Hashable
    keys: tuple[str, ...]
    until_ms: int
    values: bool


class Refused(Exception):
    """A request that makes no sense, or goes beyond a limit. The message goes back to who asked."""


class Values:
    """`ask` answers now or later; `settled` gives what can be answered since, as (who, answer)."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._values: dict[str, bytes] = {}
        self._waiting: list[Waiting] = []
        self._bytes = 0
        self._bytes_max = bytes_max

    def ask(self, who: Hashable, frame: Frame, now_ms: int) -> Frame | None:
        """The answer, or None when it comes later. One request of each `who` at a time."""
        try:
            return self._answer(who, frame, now_ms)
        except Refused as error:
            return Frame({"error": str(error)})

    def settled(self, now_ms: int) -> Iterator[tuple[Hashable, Frame]]:
        """Requests that need not wait any more."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if self._has(one.keys):
                yield one.who, self._of(one)
            elif now_ms >= one.until_ms:
                absent = [key for key in one.keys if key not in self._values]
                yield one.who, Frame({"timeout": f"waited for {', '.join(absent[:3])} in vain"})
            else:
                self._waiting.append(one)

    def next_moment(self) -> int | None:
        return min((one.until_ms for one in self._waiting), default=None)

    def forget(self, who: Hashable) -> None:
        """It asks no more."""
        self._waiting = [one for one in self._waiting if one.who != who]

    def drop(self, prefix: str) -> None:
        """Every key that begins so."""
        for key in [key for key in self._values if key.startswith(prefix)]:
            self._remove(key)

    def _answer(self, who: Hashable, frame: Frame, now_ms: int) -> Frame | None:
        keys = _keys(frame.head)
        match frame.head.get("do"):
            case "get" | "wait" as do:
                until_ms = now_ms + _timeout_ms(frame.head)
                waiting = Waiting(who, keys, until_ms, do == "get")
                if self._has(keys):
                    return self._of(waiting)
                self._waiting.append(waiting)
                return None
            case "check":
                return Frame({"is": self._has(keys)})
            case "num_keys":
                return Frame({"is": len(self._values)})
            case "list_keys":
                return Frame({"is": sorted(self._values)})
            case str(do) if do in _WRITES:
                return _WRITES[do](self, keys, frame)
            case other:
                raise Refused(f"{other!r} is no operation of the store")

    def _has(self, keys: tuple[str, ...]) -> bool:
        return all(key in self._values for key in keys)

    def _of(self, one: Waiting) -> Frame:
        return Frame({}, [self._values[key] for key in one.keys] if one.values else ())

    def _put(self, key: str, value: bytes) -> None:
        old = self._values.get(key)
        grown = self._bytes + len(value) - (len(old) if old is not None else -len(key))
        if grown > self._bytes_max or (old is None and len(self._values) >= KEYS_MAX):
            raise Refused(f"the gang's store is full: {len(self._values)} keys, {self._bytes} bytes")
        self._values[key], self._bytes = value, grown

    def _remove(self, key: str) -> bool:
        value = self._values.pop(key, None)
        if value is None:
            return False
        self._bytes -= len(key) + len(value)
        return True

    def _set(self, keys: tuple[str, ...], frame: Frame) -> Frame:
        if len(frame.parts) != len(keys):
            raise Refused("as many values as keys belong to a set")
        for key, value in zip(keys, frame.parts, strict=True):
            self._put(key, value)
        return Frame({})

    def _append(self, keys: tuple[str, ...], frame: Frame) -> Frame:
        for key, value in zip(keys, frame.parts, strict=False):
            self._put(key, self._values.get(key, b"") + value)
        return Frame({})

    def _add(self, keys: tuple[str, ...], frame: Frame) -> Frame:
        amount = frame.head.get("amount")
        try:
            total = int(self._values.get(keys[0], b"0")) + int(amount)  # type: ignore[arg-type]  # what is no number is refused
        except (TypeError, ValueError, IndexError) as error:
            raise Refused("add needs a key that holds a whole number, and a whole number") from error
        self._put(keys[0], str(total).encode())
        return Frame({"is": total})

    def _compare_set(self, keys: tuple[str, ...], frame: Frame) -> Frame:
        """As TCPStore: an absent key takes the new value only where nothing is expected of it, else the answer is what was."""
        if len(keys) != 1 or len(frame.parts) != 2:
            raise Refused("compare_set needs a key, what it should hold and what it shall")
        expected, desired = frame.parts
        current = self._values.get(keys[0])
        if current == expected or (current is None and not expected):
            self._put(keys[0], desired)
            return Frame({}, [desired])
        return Frame({}, [expected if current is None else current])

    def _delete(self, keys: tuple[str, ...], frame: Frame) -> Frame:
        return Frame({"is": [self._remove(key) for key in keys] == [True] * len(keys)})


_WRITES: Final[Mapping[str, Callable[[Values, tuple[str, ...], Frame], Frame]]] = {
    "set": Values._set,
    "append": Values._append,
    "add": Values._add,
    "compare_set": Values._compare_set,
    "delete": Values._delete,
}


def _keys(head: Mapping[str, Any]) -> tuple[str, ...]:
    keys = head.get("keys", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Refused("keys must be a list of texts")
    return tuple(keys)


def _timeout_ms(head: Mapping[str, Any]) -> int:
    """0 waits for ever, as torch's kNoTimeout."""
    timeout_ms = head.get("timeout_ms", 0)
    if type(timeout_ms) is not int or timeout_ms < 0:
        raise Refused("timeout_ms must be a whole number, 0 or more")
    return timeout_ms or NEVER_MS
