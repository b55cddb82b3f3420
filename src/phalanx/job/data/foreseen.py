"""What the ranks of a job would refuse of its data, said before it waits in a queue.

Only what can be seen from this machine is looked at, and no byte of a shard is read. What cannot be seen is no reason to refuse a
job: its nodes may have the folder, or the rights to the store.
"""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from phalanx.core.data_asked import ForeseeAsked
from phalanx.core.errors import DataError, PhalanxError
from phalanx.core.training_data import Blocks, DataSource, in_store
from phalanx.core.units import size_bytes
from phalanx.core.unprepared import unprepared
from phalanx.job.data import manifest as manifests
from phalanx.job.data.enough import (
    check_held_out,
    check_images,
    check_tokenizers,
    check_train,
    held_out_share,
    largest_shard,
    rows_of,
    window_bytes,
)
from phalanx.job.data.images.needs import check_fields, num_classes
from phalanx.job.data.manifest import SPLITS, Manifest, Split
from phalanx.job.data.open import TokenData, open_unread
from phalanx.job.data.shards import unreadable, wrong_size
from phalanx.job.data.sources import Sources, named
from phalanx.job.data.tars.manifest import parse as sample_manifest
from phalanx.job.data.tars.open import open_samples
from phalanx.storage.places import parse_place

PATIENCE_S: Final = 5.0
"""With all stores together: somebody sits before it."""

_ABSENT: Final = "it is not there: "
_AT_ONCE: Final = 16
_WARNED_MAX: Final = 3


@dataclass(slots=True)
class _Seen:
    """What could be looked at, by the name of the source: manifests of tokens, and those of them whose folder is here."""

    manifests: dict[str, Manifest] = field(default_factory=dict)
    near: dict[str, TokenData] = field(default_factory=dict)
    unseen: dict[str, str] = field(default_factory=dict)


def foreseen(asked: ForeseeAsked, environ: Mapping[str, str] = os.environ, patience_s: float = PATIENCE_S) -> tuple[str, ...]:
    """Warnings of what could not be looked at. Raises DataError for what a rank would refuse, SpecError for a number of
    classes that it would, SetupError for a URL that names no place."""
    seen, data = _Seen(), asked.data
    far = {name: path for name, path in data.paths.items() if in_store(path)}
    for name, path in data.paths.items():
        if name not in far:
            _look_near(asked, name, Path(path), seen)
    _look_far(asked, far, {**environ, **asked.env}, patience_s, seen)
    if not asked.sequence:
        return tuple(_warnings(data, seen))
    check_tokenizers({name: seen.manifests[name] for name in data.paths if name in seen.manifests})
    for name in seen.manifests:
        check_train(name, _rows(asked, seen, [name], "train", 1), asked.sequence, data.paths[name])
    _check_cache(asked, {name: one for name, one in seen.manifests.items() if name in far})
    if not seen.unseen and asked.held_out:
        tokens = {split: sum(one.splits[split].tokens for one in seen.manifests.values()) for split in SPLITS}
        rows = _rows(asked, seen, list(seen.manifests), "held_out", asked.held_out)
        check_held_out(tokens, rows, asked.sequence, asked.held_out, held_out_share(seen.manifests.values()))
    return tuple(_warnings(data, seen))


def _look_near(asked: ForeseeAsked, name: str, path: Path, seen: _Seen) -> None:
    found = unprepared(path)
    if found is not None and not found.seen:
        seen.unseen[name] = f"it {found.fix.partition(';')[0]}"
        return
    try:
        with named(asked.data, name):
            if _is_tokens(asked, name, path, manifests.load(path), seen):
                seen.near[name] = open_unread(path)
                _check_beside(path, seen.near[name].manifest, asked.data.by_document)
                seen.manifests[name] = seen.near[name].manifest
    except DataError as error:
        if not isinstance(error.__cause__, PermissionError):  # for another user it may be good
            raise
        seen.unseen[name] = f"it {error.fix.partition(';')[0]}"


def _check_beside(folder: Path, manifest: Manifest, by_document: bool) -> None:
    """The files beside the tokens that a run needs, by their sizes."""
    for shard in manifest.shards:
        for entry in filter(None, (shard.xxh3, shard.idx if by_document else None)):
            try:
                size = (folder / entry.name).stat().st_size
            except OSError as error:
                raise unreadable(entry, folder / entry.name, error) from error
            if size != entry.size_bytes:
                raise wrong_size(entry, folder, size)


def _is_tokens(asked: ForeseeAsked, name: str, place: Path | str, manifest: bytes, seen: _Seen) -> bool:
    """A script may read anything else too, such as samples."""
    kind = manifests.kind(manifest)
    if asked.images is not None and kind != "samples":
        fix = "holds no samples, and the recipe reads images: name a folder made by `phalanx data pack` or `phalanx data index`"
        raise DataError(asked.data.field_of(name), str(place), fix)
    if kind is None and not asked.sequence:
        seen.unseen[name] = f"its {manifests.MANIFEST} is none of ours"
        return False
    if kind == "samples":
        _check_samples(asked, name, place, manifest)
    return kind != "samples"


def _check_samples(asked: ForeseeAsked, name: str, place: Path | str, manifest: bytes) -> None:
    if asked.sequence:
        fix = "holds samples, such as images, and the recipe reads tokens: name a folder made by `phalanx data prepare`"
        raise DataError(asked.data.field_of(name), str(place), f"{fix}, or train by recipe `vit` or a script")
    if isinstance(place, Path):
        open_samples(place)  # of which each file has to be there
    if asked.images is not None:
        of_images = sample_manifest(manifest, f"{place}/{manifests.MANIFEST}")
        check_fields(asked.data, of_images)
        num_classes(asked.classes, len(of_images.classes))
        check_images(of_images.samples, asked.images, asked.held_out)


def _look_far(asked: ForeseeAsked, far: Mapping[str, str], environ: Mapping[str, str], patience_s: float, seen: _Seen) -> None:
    """All at once. What has not answered in time is let go of: its request ends soon after."""
    if not far:
        return
    for name, url in far.items() if asked.sequence or asked.images is not None else ():  # a script may read what we do not know
        parse_place(url, asked.data.field_of(name))
    threads = ThreadPoolExecutor(min(_AT_ONCE, len(far)))
    asking = {name: threads.submit(_manifest_at, url, environ, patience_s) for name, url in far.items()}
    wait(asking.values(), patience_s)
    threads.shutdown(wait=False, cancel_futures=True)
    for name, answer in asking.items():
        with named(asked.data, name):
            _take(asked, name, far[name], answer, environ, seen)


def _manifest_at(url: str, environ: Mapping[str, str], patience_s: float) -> bytes:
    from phalanx.job.data.store_source import stored_manifest  # what folders do without
    from phalanx.storage.objects import open_store
    from phalanx.storage.remote import Patience

    brief = Patience(connect_s=patience_s / 2, request_s=patience_s, retries_s=0.0, retries_max=0)
    return stored_manifest(open_store(url, environ, brief, "data"))


def _take(asked: ForeseeAsked, name: str, url: str, answer: "Future[bytes]", environ: Mapping[str, str], seen: _Seen) -> None:
    if not answer.done() or answer.cancelled():
        seen.unseen[name] = "its store has not answered yet"
        return
    try:
        data = answer.result()
    except DataError:
        if not _is_our_own(environ, asked.env, url):
            raise
        seen.unseen[name] = "the store at this machine's AWS_ENDPOINT_URL has no such data, and the ranks' may be another"
        return
    except PhalanxError as error:  # the store's, or of rights that a node has
        seen.unseen[name] = error.sentence()
        return
    if _is_tokens(asked, name, url, data, seen):
        from phalanx.job.data.stored import check_format

        seen.manifests[name] = manifests.parse(data, f"{url}/{manifests.MANIFEST}")
        check_format(seen.manifests[name], url)


def _is_our_own(environ: Mapping[str, str], asked: Mapping[str, str], url: str) -> bool:
    """Whether this machine's environment alone says which server that is: the nodes may have another with a bucket of that name."""
    names = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
    return url.startswith("s3://") and any(map(environ.get, names)) and not any(map(asked.get, names))


def _rows(asked: ForeseeAsked, seen: _Seen, names: Iterable[str], split: Split, needed: int) -> int:
    """As many as there are for sure where these are enough, else all; of what lies in a store and is packed whole, at most so many
    as there may be."""
    rows = {name: rows_of(seen.manifests[name], split, asked.sequence, asked.data.packing) for name in names}
    if (least := sum(one.least for one in rows.values())) >= needed:
        return least
    near = {name: seen.near[name] for name in rows if name in seen.near}
    counted = Sources(asked.data, near).sizes(split, asked.sequence)
    return sum(counted.get(name, one.most) for name, one in rows.items())


def _check_cache(asked: ForeseeAsked, far: Mapping[str, Manifest]) -> None:
    """What the job itself says of it; what a node says is not known here."""
    said, shuffle = asked.data.cache.limit, asked.data.shuffle
    sizes = [(*largest_shard(manifest), f"of {asked.data.paths[name]}") for name, manifest in far.items()]
    if isinstance(shuffle, Blocks):
        rows = {name: rows_of(manifest, "train", asked.sequence, asked.data.packing).least for name, manifest in far.items()}
        size = window_bytes(shuffle.window, rows, far, asked.sequence)
        sizes.append((size, f"a window of {shuffle.window} samples", "of each source (`data.shuffle`)"))
    for size, what, whose in sizes if said else ():
        if size > size_bytes(said):
            raise DataError("data.cache.limit", said, f"{what} {whose} has {size} bytes; write a size above that")


def _warnings(data: DataSource, seen: _Seen) -> Iterable[str]:
    for name in list(seen.unseen)[:_WARNED_MAX]:
        where, why = f"{data.field_of(name)} {data.paths[name]}", seen.unseen[name]
        if why.startswith(_ABSENT):
            why = why.removeprefix(_ABSENT)
            yield f"{where} is not there on this machine ({why}); if the machines of its ranks have it, all is well"
        else:
            yield f"{where} could not be looked at from here, so its ranks do: {why}"
    if (more := len(seen.unseen) - _WARNED_MAX) > 0:
        yield f"{more} more of its sources could not be looked at from here"
