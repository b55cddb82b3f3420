"""What `phalanx data show` and `verify` tell, whatever kind of data a folder holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.core import wire
from phalanx.job.data import manifest as manifests
from phalanx.job.data.show import DataSummary, summary
from phalanx.job.data.tars.show import SampleSummary, sample_summary
from phalanx.job.data.verify import VerifyProgress


def shown(path: Path, progress: VerifyProgress | None = None) -> Mapping[str, Any]:
    """The summary of a folder, of which every byte was compared. Raises DataError."""
    return _summary(path, verify=True, progress=progress)


def shown_unread(path: Path) -> Mapping[str, Any]:
    """The summary of a folder that was just made: nothing is read again, and nothing is said of it."""
    found = _summary(path, verify=False, progress=None)
    return {name: value for name, value in found.items() if name != "checksums_ok"}


def _summary(path: Path, verify: bool, progress: VerifyProgress | None) -> Mapping[str, Any]:
    plain: Mapping[str, Any]
    if manifests.kind(manifests.load(path)) == "samples":
        plain = wire.plain(SampleSummary, sample_summary(path, verify, progress))
    else:
        plain = wire.plain(DataSummary, summary(path, verify, progress))
    return plain
