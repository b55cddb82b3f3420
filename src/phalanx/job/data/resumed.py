"""What a `phalanx data prepare` that was interrupted had finished, as the next one tells it."""

from dataclasses import dataclass

from phalanx.core.units import count_of
from phalanx.job.data.journal import Journal
from phalanx.job.data.parity import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What a run that was interrupted had finished and this one kept, in shards. dropped: it was of other text, or asked otherwise,
    or is not what was written."""

    shards: int
    tokens: int
    documents: int
    dropped: int


def kept_of(journal: Journal) -> Resumed:
    kept = [shard for shards in journal.shards.values() for shard in shards]
    return Resumed(
        shards=len(kept),
        tokens=sum(shard.tokens for shard in kept),
        documents=sum(shard.documents for shard in kept),
        dropped=journal.found - len(kept),
    )


def encoding_phase(choice: Choice, resumed: Resumed) -> str:
    """What progress is told of, with what was kept."""
    why = f" ({choice.why})" if choice.why else ""
    kept = f", after {count_of(resumed.shards, 'shard')} of an interrupted run" if resumed.shards else ""
    return f"encoding with {choice.engine}{why}{kept}"
