"""A store that refuses on request (docs/chaos.md): the keeper fails in front of its own writes, and fills nobody's disk."""

import errno
import os

from phalanx.core.chaos import FOLDER
from phalanx.core.errors import StoreUnavailable
from phalanx.job.sdk.chaos import outage


def refuse_if_asked(rank: int) -> None:
    """Raises what a full disk, or a store that is away, would: OSError (ENOSPC) or StoreUnavailable."""
    match outage(os.environ.get(FOLDER, ""), rank):
        case "fill-disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case "drop-store":
            raise StoreUnavailable("the store does not answer (a fault that was asked for)")
