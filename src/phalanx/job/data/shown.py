"""What `phalanx data show` and `verify` tell, whatever kind of data a folder holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data.checked import path_of
from phalanx.job.data.show import DataSummary, summary
from phalanx.job.data.tars import manifest as tars
from phalanx.job.data.tars.show import SampleSummary, sample_summary
from phalanx.job.data.verify import Damage, VerifyProgress, verify_files


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
    of_samples = manifests.kind(manifests.load(folder)) == "samples"
    try:
        verify_files(folder, tars.read(folder)[0] if of_samples else manifests.read(folder)[0], progress)
    except Damage as damage:
        return damage
    return None


def shown_unread(path: Path | str, progress: VerifyProgress | None = None) -> Mapping[str, Any]:
    """The summary of a folder, or of tokens in a store: no more is read than is shown, but for a folder of format 1, which has no
    checksums of blocks. Raises DataError."""
    found = _summary(path, verify=False, progress=progress)
    return {name: value for name, value in found.items() if name != "checksums_ok"}


def _summary(path: Path | str, verify: bool, progress: VerifyProgress | None) -> Mapping[str, Any]:
    plain: Mapping[str, Any]
    path_of("data", path)
    if "://" not in str(path) and manifests.kind(manifests.load(Path(path))) == "samples":
        plain = wire.plain(SampleSummary, sample_summary(Path(path), verify, progress))
    else:
        plain = wire.plain(DataSummary, summary(path, verify, progress))
    return plain
