"""What is wrong with the data of a job. Part of `spec_parse`: (field, value, good, what to change)."""

import math
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.spec import JobSpec
from phalanx.core.spec_sharing import Check, parsed
from phalanx.core.training_data import CACHE_UNIT_BYTES, Blocks, DataCache, DataSource, MixtureSource, in_store
from phalanx.core.units import size_bytes
from phalanx.core.unprepared import unprepared

SOURCES_MAX: Final = 10_000
SAMPLES_MAX: Final = 2**62
TEXT_BYTES_MAX: Final = 120_000
"""It reaches the ranks as a variable of their environment, of which Linux takes 128 KiB."""
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})")
_SHARE: Final = "write a number from 0 up"
_NO_SHARE: Final = "no source has a share; give one a weight above 0"


def data_checks(spec: JobSpec) -> Iterable[Check]:
    data = spec.data
    if data is None:
        return
    if data.sources:
        yield "data", "path and sources", not data.path, "give path or sources, one of them"
    else:
        yield "data.path", data.path, bool(data.path), "name a folder made by `phalanx data prepare`, or several in data.sources"
        for name, given in (("temperature", data.temperature is not None), ("changes", bool(data.changes))):
            yield (
                f"data.{name}",
                getattr(data, name),
                not given,
                "is for several data sets: name them in data.sources, or leave it out",
            )
    good = 0 <= data.bad_data_max < 1
    yield "data.bad_data_max", data.bad_data_max, good, "write a share from 0 up to, but not, 1, such as 0.01"
    yield from _sources(data)
    yield from _shares(data)
    yield from _changes(data)
    yield from _rows(data)
    yield from _cache(data.cache)
    size = len(wire.dumps(DataSource, data).encode())
    yield (
        "data",
        f"({size} bytes)",
        size <= TEXT_BYTES_MAX,
        f"write it in {TEXT_BYTES_MAX} bytes, by fewer sources or shorter paths",
    )


def image_checks(spec: JobSpec) -> Iterable[Check]:
    """Of a recipe that reads images, which lie in no rows and are no documents."""
    if spec.data is None:
        return
    yield "data.sources", len(spec.data.sources), not spec.data.sources, "images are read from one data set: write data.path"
    for name in ("packing", "attention"):
        value = getattr(spec.data, name)
        yield (
            f"data.{name}",
            value,
            value == getattr(DataSource(), name),
            "is for tokens, and the recipe reads images: leave it out",
        )


def refuse_unprepared(data: DataSource) -> None:
    """Raises SpecError for what is seen from here and is no prepared data. A path that is not on this machine may be on the nodes,
    and what lies in a store is looked at by who has the rights."""
    for name, path in data.paths.items():
        found = None if in_store(path) else unprepared(Path(path))
        if found is not None and found.seen:
            raise SpecError(data.field_of(name), path, found.fix)


def _sources(data: DataSource) -> Iterable[Check]:
    yield "data.sources", len(data.sources), len(data.sources) <= SOURCES_MAX, f"name at most {SOURCES_MAX}"
    for name, source in data.sources.items():
        at = f"data.sources.{name}"
        yield at, name, _NAME.fullmatch(name) is not None, "name sources with letters, digits, '-' and '_', at most 63"
        yield f"{at}.path", source.path, bool(source.path), "name a folder made by `phalanx data prepare`"
        both = source.weight is not None and source.epochs is not None
        yield at, f"weight {source.weight} and epochs {source.epochs}", not both, "give one of them"
        for field in ("weight", "epochs"):
            value = getattr(source, field)
            yield f"{at}.{field}", value, value is None or _is_share(value), _SHARE


def _shares(data: DataSource) -> Iterable[Check]:
    """All sources say their shares in one way."""
    given = {name: _way(one) for name, one in data.sources.items()}
    if len(set(given.values())) > 1:
        field = next(field for field in given.values() if field)
        odd = next(name for name, other in given.items() if other != field)
        fix = f"others have {field}: give it {field} too; all sources have weights, or all epochs, or none of both"
        yield f"data.sources.{odd}", given[odd] or "(no share)", False, fix
    by_size = not any(given.values())
    if data.temperature is not None:
        yield "data.temperature", data.temperature, by_size, "is for sources by their sizes: leave it out, or weights and epochs"
        good = 0 < data.temperature < math.inf
        yield "data.temperature", data.temperature, good, "write a number above 0; 1 reads sources in proportion to their sizes"
    if not by_size:
        yield "data.sources", 0, any(one.weight or one.epochs for one in data.sources.values()), _NO_SHARE


def _way(source: MixtureSource) -> str:
    return "weight" if source.weight is not None else "epochs" if source.epochs is not None else ""


def _changes(data: DataSource) -> Iterable[Check]:
    before = 0
    for number, change in enumerate(data.changes):
        at = f"data.changes.{number}"
        order = "write changes in the order of their steps, the first after step 0"
        yield f"{at}.from_step", change.from_step, change.from_step > before, order
        before = change.from_step
        for name, weight in change.weights.items():
            yield f"{at}.weights", name, name in data.sources, f"is no source; there are {', '.join(sorted(data.sources))}"
            yield f"{at}.weights.{name}", weight, _is_share(weight), _SHARE
        yield f"{at}.weights", dict(change.weights), any(change.weights.values()), _NO_SHARE


def _rows(data: DataSource) -> Iterable[Check]:
    fix = "leave it out: whole documents of a row are always told apart"
    yield "data.attention", data.attention, data.packing != "best_fit" or data.attention != "row", fix
    if isinstance(data.shuffle, Blocks):
        for name in ("block_samples", "window_blocks"):
            value = getattr(data.shuffle, name)
            yield f"data.shuffle.{name}", value, 1 <= value <= SAMPLES_MAX, "write a whole number above 0"


def _cache(cache: DataCache) -> Iterable[Check]:
    good = not cache.folder or PurePosixPath(cache.folder).is_absolute()
    yield "data.cache.folder", cache.folder, good, "name a folder that each node has on a local disk, from its root on"
    if cache.limit:
        yield parsed("data.cache.limit", cache.limit, partial(size_bytes, cache.limit))
        limit_bytes = size_bytes(cache.limit)
        fix = f"is {limit_bytes} bytes, and data comes in units of {CACHE_UNIT_BYTES}; write a size above that, such as '200GiB'"
        yield "data.cache.limit", cache.limit, limit_bytes >= CACHE_UNIT_BYTES, fix


def _is_share(value: float) -> bool:
    return 0 <= value < math.inf
