"""A commit that no rank is there to hear of is told to the platform by the keeper itself, in its dead rank's record file.

Whoever takes the rank's place may say it again: a checkpoint that was said twice counts once.
"""

import os
import time
from pathlib import Path

from phalanx.core.records import CheckpointCommitted
from phalanx.job.checkpoint.keeper.messages import Committed, News
from phalanx.job.sdk.journal import Bell, Journal


def record_unheard(news: News) -> None:
    """A disk that takes no record costs the telling, not the checkpoint."""
    records = os.environ.get("PHALANX_RECORDS", "")
    if not isinstance(news, Committed) or not records:
        return
    saved, at_ms = news.saved, time.time_ns() // 1_000_000
    journal = Journal(Path(records), Bell(os.environ.get("PHALANX_SOCKET", ""), 0, time.monotonic))
    said = CheckpointCommitted(
        rank=0, step=saved.step, path=saved.path, digest=saved.digest, size_bytes=saved.size_bytes, at_ms=at_ms
    )  # fmt: skip
    journal.write(said)
    journal.close()
