"""What `phalanx data show` and `verify` tell, whatever kind of data a folder holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.core import wire
from phalanx.core.errors import DataError, NotFound
from phalanx.job.data import manifest as manifests
from phalanx.job.data.checked import path_of
from phalanx.job.data.manifest import MANIFEST
from phalanx.job.data.show import DataSummary, summary
from phalanx.job.data.store_source import REQUEST
from phalanx.job.data.tars import manifest as tars
from phalanx.job.data.tars.show import SampleSummary, sample_summary
from phalanx.job.data.verify import Damage, VerifyProgress, verify_files
from phalanx.storage.objects import open_store
from phalanx.storage.places import parse_place


def verified(path: Path | str, progress: VerifyProgress | None = None) -> Mapping[str, Any]:
    """The summary with every byte compared. Of damaged data: path, checksums_ok False, damaged with `file` and `problem` of each,
    and says, for people. Raises DataError for what is no data set."""
    try:
        return _summary(path, verify=True, progress=progress)
    except DataError as error:
        damage = error if isinstance(error, Damage) or "://" in str(path) else _damage(Path(path), progress)
        if not isinstance(damage, Damage):
            raise
        files = [{"file": one.field, "problem": one.sentence()} for one in damage.files]
        return {"path": str(path), "checksums_ok": False, "damaged": files, "says": damage.sentence()}


def _damage(folder: Path, progress: VerifyProgress | None) -> Damage | None:
    """Of a folder that does not even open, such as one with a shard that is gone. Raises DataError for one that is no data set."""
    try:
        verify_files(folder, tars.of_either(manifests.load(folder), str(folder / MANIFEST)), progress)
    except Damage as damage:
        return damage
    return None


def shown_unread(path: Path | str, progress: VerifyProgress | None = None) -> Mapping[str, Any]:
    """The summary of a folder, or of what lies in a store: no more is read than is shown, but for tokens of format 1, which have no
    checksums of blocks. Raises DataError."""
    found = _summary(path, verify=False, progress=progress)
    return {name: value for name, value in found.items() if name != "checksums_ok"}


def _summary(path: Path | str, verify: bool, progress: VerifyProgress | None) -> Mapping[str, Any]:
    plain: Mapping[str, Any]
    path_of("data", path)
    if _kind(path) == "samples":
        plain = wire.plain(SampleSummary, sample_summary(path, verify, progress))
    else:
        plain = wire.plain(DataSummary, summary(path, verify, progress))
    return plain


def _kind(path: Path | str) -> manifests.Kind | None:
    """What lies there. Raises as opening it does; of what is not there in a store, opening it says so."""
    if "://" not in str(path):
        return manifests.kind(manifests.load(Path(path)))
    place = parse_place(str(path), "data")
    if place.scheme == "file":
        return manifests.kind(manifests.load(Path(place.path)))
    try:
        return manifests.kind(open_store(str(path), patience=REQUEST, field="data").get(MANIFEST))
    except NotFound:
        return None
