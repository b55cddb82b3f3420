"""What it takes to read samples, wherever their tars lie."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from phalanx.job.data.manifest import FileEntry
from phalanx.job.data.shards import Watch
from phalanx.job.data.tars.index import Place
from phalanx.job.data.verify import VerifyProgress

if TYPE_CHECKING:
    from phalanx.storage.cache.node_cache import NodeCache

BYTES_AT_ONCE: Final = 64 * 2**20
"""Of samples that are read before the first of them is handed on."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A sample that is to be read. row: of the shard's index. places: of the fields that are wanted, by name."""

    number: int
    shard: int
    row: int
    key: str
    places: Mapping[str, Place]

    @property
    def size_bytes(self) -> int:
        return sum([place.size for place in self.places.values()])


class Tars(Protocol):
    """The tars of a data set, by the numbers of its shards. Any thread may call it.

    place: a folder or a URL. advice: how what is damaged is made whole again. cache: that they are read through, if they are.
    """

    @property
    def place(self) -> str: ...
    @property
    def advice(self) -> str: ...
    @property
    def cache(self) -> "NodeCache | None": ...

    def small(self, entries: Sequence[FileEntry], watch: Watch | None) -> list[bytes]:
        """Files that fit into memory, checked against the manifest."""

    def together(self, asked: Sequence[Asked]) -> Iterator[list[Asked]]:
        """In this order, those that may be held at once."""

    def held(self, asked: Sequence[Asked], watch: Watch | None) -> AbstractContextManager[None]:
        """These may be read within. Nobody holds some while waiting for others."""

    def read(self, shard: int, place: Place) -> bytes:
        """Bytes of what is held, unchecked: other ones, or none at all, where they are damaged. Raises DataError where the tar
        cannot be read, or is too short."""

    def again(self, shard: int, place: Place) -> bytes:
        """As `read`, past whatever may have damaged them on the way here."""

    def verify(self, progress: VerifyProgress | None) -> None:
        """Reads every file and compares it. Raises DataError."""


def chunks(asked: Sequence[Asked], sizes: Callable[[Asked], Mapping[Any, int]], bytes_max: int) -> Iterator[list[Asked]]:
    """In this order, as many at a time as need no more than this, but one at least. sizes: in bytes, of what a sample needs; what
    several need counts once."""
    chunk: list[Asked] = []
    needed: dict[Any, int] = {}
    for one in asked:
        more = {what: size for what, size in sizes(one).items() if what not in needed}
        if chunk and sum(needed.values()) + sum(more.values()) > bytes_max:
            yield chunk
            chunk, needed, more = [], {}, dict(sizes(one))
        chunk.append(one)
        needed.update(more)
    if chunk:
        yield chunk
