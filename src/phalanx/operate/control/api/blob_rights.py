"""Which blobs somebody may read: those that their teams' jobs name, and those that they sent themselves of late.

A blob is named by its hash, so that two teams may have one and the same; whoever knows a hash has the bytes no sooner for it.
"""

from typing import Final

from sqlalchemy import delete, select

from phalanx.core.errors import NotFound
from phalanx.core.people import DAY_MS, Person
from phalanx.operate.control import tables
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.rows import put

SENT_MS: Final = DAY_MS
"""How long a blob counts as its sender's without a job that names it: from an upload to its submit it is a second."""

_SENT: Final = tables.blob_senders.c


def has(services: Services, person: Person | None, sha256: str) -> bool:
    """Whether it is there for them; None is a node. Raises as the store does."""
    return _may_read(services, person, sha256) and services.blobs.has(sha256)


def refuse_others(services: Services, person: Person | None, sha256: str) -> None:
    """Raises NotFound, in the words of one that is not there."""
    if not _may_read(services, person, sha256):
        raise NotFound("blob", sha256, "no blob has this SHA-256; send it first")


def note_sender(services: Services, epoch: int, person: Person, sha256: str) -> None:
    """They have shown that they have the bytes. Raises StoreUnavailable."""
    now_ms = services.clock.now_ms()
    row = {"sha256": sha256, "person": person.user, "at_ms": now_ms}
    with services.store.leading(epoch) as connection:
        connection.execute(delete(tables.blob_senders).where(_SENT.at_ms < now_ms - SENT_MS))
        connection.execute(put(tables.blob_senders, *row), row)


def _may_read(services: Services, person: Person | None, sha256: str) -> bool:
    if person is None or person.everywhere is not None:
        return True
    jobs = services.control.world.jobs.values()
    if any(job.code == sha256 and person.sees(job.spec.team) for job in jobs):
        return True
    return _sent_or_kept(services, person, sha256)


def _sent_or_kept(services: Services, person: Person, sha256: str) -> bool:
    since_ms = services.clock.now_ms() - SENT_MS
    sent = select(_SENT.at_ms).where(_SENT.sha256 == sha256, _SENT.person == person.user, _SENT.at_ms >= since_ms)
    of_jobs = tables.artifacts.join(tables.attempts).join(tables.jobs)
    kept = (
        select(tables.artifacts.c.attempt)
        .select_from(of_jobs)
        .where(tables.artifacts.c.sha256 == sha256, tables.jobs.c.team.in_(person.teams_as("viewer")))
        .limit(1)
    )
    with services.store.reading() as connection:
        return connection.execute(sent).first() is not None or connection.execute(kept).first() is not None
