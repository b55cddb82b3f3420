"""Damage that can be named to the block: what a policy may set aside, where all else ends the run."""

from dataclasses import dataclass
from typing import Any

from phalanx.core.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Block:
    """A block of a shard by what it should hold, so that every rank and every copy of the data means the same one.

    data: manifest hash of the data set. shard: SHA-256 of the shard's tokens. block: number of the MiB in it.
    """

    data: str
    shard: str
    block: int


class BadBlock(DataError):
    """A block is not what was prepared, also when it was fetched again."""

    def __init__(self, field: str, value: object, fix: str, block: Block) -> None:
        self.block = block
        super().__init__(field, value, fix)

    def __reduce__(self) -> Any:
        return type(self), (self.field, self.value, self.fix, self.block)
