"""The audit of a run's deliveries, held against its newest checkpoint. No torch."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from phalanx.core.checkpoints import CHECKPOINTS
from phalanx.core.data_asked import AuditAsked
from phalanx.core.data_audit import DataAudit, Reached
from phalanx.core.errors import CheckpointError, DataError, SetupError, StoreUnavailable
from phalanx.core.ids import AttemptId, split_attempt
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.folder import folder_at
from phalanx.job.checkpoint.manifest import Manifest
from phalanx.job.data.audit_folder import audit_folder, records_in
from phalanx.job.data.cursor import EXTRA, Cursor


def audited(asked: AuditAsked, progress: Callable[[int, int], None] | None = None) -> DataAudit:
    """Raises DataError where there are no records, or damaged ones."""
    saved = _newest(asked.checkpoints or records_in(asked.folder).parent / CHECKPOINTS)  # first: a run may go on meanwhile
    return audit_folder(asked.folder, asked.contents, progress, (*asked.reached, *((saved,) if saved else asked.heard)), asked.none)


def _newest(place: str | Path) -> Reached | None:
    """The checkpoint that the newest gang has saved last. None for a place that cannot be looked into: the records stand for
    themselves then."""
    with contextlib.suppress(SetupError, StoreUnavailable, OSError):
        return max(_saved(place), key=lambda one: (one.attempt, one.generation, one.samples), default=None)
    return None


def _saved(place: str | Path) -> Iterator[Reached]:
    for _, folder in manifest.committed(folder_at(place)):
        with contextlib.suppress(CheckpointError, DataError):  # `checkpoint verify` is who tells of a damaged one
            found, _ = manifest.read(folder)
            if EXTRA in found.extra:
                yield _reached(found)


def _reached(saved: Manifest) -> Reached:
    attempt = 0
    with contextlib.suppress(ValueError):
        attempt = split_attempt(AttemptId(saved.attempt))[1]
    delivered = Cursor.from_json(str(saved.extra[EXTRA])).delivered
    return Reached(by="the newest checkpoint is of", samples=delivered, attempt=attempt, generation=saved.key.generation)
