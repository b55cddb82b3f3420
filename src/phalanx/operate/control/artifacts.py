"""Files that ranks gave: taken in from agents as names of blobs, and looked up. The bytes lie in the blob store.

A name is data and never becomes a path here. Rows are written once their blob is there, so whoever reads a row can have the bytes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from sqlalchemy import func, select

from phalanx.core.artifact_names import FILES_MAX, is_artifact_name
from phalanx.core.errors import SetupError, StoreUnavailable, WorldError
from phalanx.core.ids import AttemptId, NodeId, split_attempt
from phalanx.core.messages import ArtifactAck, ArtifactSaved
from phalanx.core.views import ArtifactView
from phalanx.operate.control.blob_threads import on_blob_thread
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.rows import put
from phalanx.operate.control.store import Store
from phalanx.operate.control.tables import artifacts as table
from phalanx.storage.blobs import BLOB_BYTES_MAX, BlobStore
from phalanx.storage.hashes import is_sha256

log = structlog.get_logger(__name__)
STORE_S_MAX: Final = 3.0


class Artifacts:
    """Takes what agents of all nodes say of their attempts' files."""

    def __init__(self, control: ControlThread, store: Store, blobs: BlobStore) -> None:
        self._control = control
        self._store = store
        self._blobs = blobs

    async def take(self, node: NodeId, saved: ArtifactSaved) -> ArtifactAck:
        """The acknowledgement of `saved`, once its row is durable. What is not the node's to tell is acknowledged and dropped:
        without an answer the attempt could never end.

        Raises ValueError when the message is malformed, WorldError when the bytes have to be sent again.
        """
        _check(saved)
        ack = ArtifactAck(saved.attempt, saved.name, saved.sha256)
        if self._control.world.current(saved.attempt, node) is None:
            return ack
        if not await self._has(saved):
            raise WorldError(f"artifact {saved.name!r} of {saved.attempt}: its bytes are not here; send them again")
        if not await self._control.call(lambda controller: note(self._store, controller.epoch, saved)):
            log.warning("artifact_beyond_limit", attempt=saved.attempt, limit=FILES_MAX)
        return ack

    async def _has(self, saved: ArtifactSaved) -> bool:
        """Whether its bytes are here. The node's logs wait behind this answer, so it does not wait for a slow store."""
        try:
            async with asyncio.timeout(STORE_S_MAX):
                return await on_blob_thread(self._blobs.has, saved.sha256)
        except TimeoutError as error:
            raise StoreUnavailable(f"artifact {saved.name!r} of {saved.attempt}: the blob store does not answer") from error
        except SetupError as error:  # not this node's fault: it may say it again
            raise StoreUnavailable(str(error)) from error


def note(store: Store, epoch: int, saved: ArtifactSaved) -> bool:
    """Puts the row in place of an older version's. False when the attempt has FILES_MAX others. Raises StoreUnavailable."""
    row: dict[str, Any] = {"attempt": saved.attempt, "name": saved.name, "sha256": saved.sha256}
    row |= {"size_bytes": saved.size_bytes, "at_ms": saved.at_ms}
    others = select(func.count()).select_from(table).where(table.c.attempt == saved.attempt, table.c.name != saved.name)
    with store.leading(epoch) as connection:
        if connection.execute(others).scalar_one() >= FILES_MAX:
            return False
        connection.execute(put(table, *row), row)
    return True


def of_attempts(store: Store, attempts: Sequence[AttemptId], after: tuple[str, str], limit: int) -> tuple[ArtifactView, ...]:
    """Newest version of each file of each of `attempts`, by attempt and name, those after `after`. Raises StoreUnavailable."""
    attempt, name = after
    beyond = (table.c.attempt > attempt) | ((table.c.attempt == attempt) & (table.c.name > name))
    query = select(table).where(table.c.attempt.in_(attempts), beyond).order_by(table.c.attempt, table.c.name).limit(limit)
    with store.reading() as connection:
        return tuple(_view(row._mapping) for row in connection.execute(query))


def count(store: Store, attempt: AttemptId) -> int:
    """How many files of the attempt are kept. Raises StoreUnavailable."""
    with store.reading() as connection:
        number: int = connection.execute(select(func.count()).select_from(table).where(table.c.attempt == attempt)).scalar_one()
    return number


def named(store: Store, attempts: Sequence[AttemptId], name: str) -> Mapping[AttemptId, ArtifactView]:
    """The file of that name of each of `attempts` that has one. Raises StoreUnavailable."""
    query = select(table).where(table.c.attempt.in_(attempts), table.c.name == name)
    with store.reading() as connection:
        views = [_view(row._mapping) for row in connection.execute(query)]
    return {view.attempt: view for view in views}


def _view(row: Mapping[Any, Any]) -> ArtifactView:
    return ArtifactView(**{field: row[field] for field in ("attempt", "name", "sha256", "size_bytes", "at_ms")})


def _check(saved: ArtifactSaved) -> None:
    split_attempt(saved.attempt)
    if not is_artifact_name(saved.name):
        raise ValueError(f"artifact: the name {saved.name[:100]!r} cannot be")
    if not is_sha256(saved.sha256) or not 0 <= saved.size_bytes <= BLOB_BYTES_MAX or not 0 <= saved.at_ms < 2**60:
        raise ValueError("artifact: hash, size or time cannot be")
