"""Where this node's cache of prepared data lies, and how large it may become."""

import os
from collections.abc import Mapping
from pathlib import Path

from phalanx.core.errors import SetupError
from phalanx.core.training_data import CACHE_LIMIT_VARIABLE, cache_folder
from phalanx.core.units import size_bytes
from phalanx.storage.cache.node_cache import NodeCache
from phalanx.storage.cache.opened import cache_at


def node_cache(folder: str = "", limit: str = "", environ: Mapping[str, str] = os.environ) -> NodeCache:
    """The cache in a folder, with a limit such as '200GB'. Where they are not given: PHALANX_DATA_CACHE, else a folder in
    XDG_CACHE_HOME or ~/.cache; PHALANX_DATA_CACHE_LIMIT, else half of what the disk has for it.

    Raises SetupError for what is no size and for a folder that cannot be used, StoreUnavailable where its disk is full.
    """
    place = (Path(folder) if folder else cache_folder(environ)).expanduser().absolute()
    return cache_at(place, _limit(limit or environ.get(CACHE_LIMIT_VARIABLE, "")))


def _limit(text: str) -> int | None:
    if not text:
        return None
    try:
        found = size_bytes(text)
    except ValueError as error:
        raise SetupError("data cache limit", text, str(error)) from error
    if found < 1:
        raise SetupError("data cache limit", text, "write a size above 0, such as '200GB'")
    return found
