"""torch's store over the gang's own: it lives in the coordinator, so no rank's death takes it along, rank 0's neither."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from phalanx.job.sdk.gang_link import GangGone, StoreLink

Value = str | bytes
_MILLISECOND = timedelta(milliseconds=1)


class GangStore(Store):
    """One generation's way to the store; wrap it into a `PrefixStore`. May be used from several threads at once.

    Raises DistStoreError when a wait is over in vain, when the coordinator is gone, and once `close` was called.
    """

    def __init__(self, link: StoreLink, timeout: timedelta) -> None:
        super().__init__()
        self._link = link
        self.set_timeout(timeout)

    def close(self) -> None:
        """Ends what waits here, from any thread: the generation is over."""
        self._link.close()

    def clone(self) -> "GangStore":
        return self  # any thread may use it

    def set(self, key: str, value: Value) -> None:
        self._ask("set", [key], [_bytes(value)])

    def get(self, key: str) -> bytes:
        return self._ask("get", [key], timeout_ms=self._ms(None))[1][0]

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", [key], amount=value)[0]["is"])

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        return self._ask("compare_set", [key], [_bytes(expected), _bytes(desired)])[1][0]

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", list(keys))[0]["is"])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", list(keys), timeout_ms=self._ms(timeout))

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", [key])[0]["is"])

    def num_keys(self) -> int:
        return int(self._ask("num_keys", [])[0]["is"])

    def list_keys(self) -> list[str]:
        return list(self._ask("list_keys", [])[0]["is"])

    def append(self, key: str, value: Value) -> None:
        self._ask("append", [key], [_bytes(value)])

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return list(self._ask("get", list(keys), timeout_ms=self._ms(None))[1])

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self._ask("set", list(keys), [_bytes(value) for value in values])

    def has_extended_api(self) -> bool:
        return True

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815 - under these names torch's C++ side looks for them

    def _ms(self, timeout: timedelta | None) -> int:
        """0 waits for ever, as torch's own; less than a millisecond is one. None is the store's own timeout."""
        if timeout is None:
            timeout = cast(timedelta, self.timeout)  # type: ignore[attr-defined]  # a property that torch's stubs leave out
        return max(1, timeout // _MILLISECOND) if timeout else 0

    def _ask(self, do: str, keys: list[str], parts: Sequence[bytes] = (), **more: int) -> tuple[Any, Sequence[bytes]]:
        try:
            answer = self._link.ask({"do": do, "keys": keys, **more}, parts)
        except (GangGone, TimeoutError) as error:
            raise dist.DistStoreError(f"{do}: {error}") from error
        return answer.head, answer.parts


def _bytes(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
