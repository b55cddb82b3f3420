"""How a process comes to a cache's index: the first one makes it anew of the files that are there."""

import os
import time
from typing import Final

from phalanx.core.errors import StoreUnavailable
from phalanx.storage.cache.files import CacheFiles
from phalanx.storage.cache.index import Index

_OPEN_S: Final = 60.0
_POLL_S: Final = 0.005


def entered(files: CacheFiles) -> tuple[int, Index]:
    """The descriptor that says that the cache is used, and its index, made anew where nobody used it."""
    end = time.monotonic() + _OPEN_S
    while True:
        users, alone = files.lock_users()
        try:
            if alone:
                files.clear_index()
                made = Index(files.index)
                made.make(files.found())
                made.close()
                files.share(users)
            index = Index(files.index)
            if index.is_made:
                return users, index
            index.close()
        except BaseException:
            os.close(users)
            raise
        os.close(users)
        if time.monotonic() > end:
            raise StoreUnavailable(
                f"{files.folder}: this cache is used by another version of Phalanx; end that, or name another folder"
            )
        time.sleep(_POLL_S)
