"""What `phalanx data show` and `verify` tell, whatever kind of data a folder holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.core import wire
from phalanx.job.data import manifest as manifests
from phalanx.job.data.show import DataSummary, summary
from phalanx.job.data.tars.show import SampleSummary, sample_summary
from phalanx.job.data.verify import VerifyProgress


def shown(path: Path | str, progress: VerifyProgress | None = None, verify: bool = True) -> Mapping[str, Any]:
    """The summary of a folder, or of tokens in a store. Raises DataError. verify: compares every byte."""
    return _summary(path, verify=verify, progress=progress)


def shown_unread(path: Path) -> Mapping[str, Any]:
    """The summary of a folder that was just made: nothing is read again, and nothing is said of it."""
    found = _summary(path, verify=False, progress=None)
    return {name: value for name, value in found.items() if name != "checksums_ok"}


def _summary(path: Path | str, verify: bool, progress: VerifyProgress | None) -> Mapping[str, Any]:
    plain: Mapping[str, Any]
    if "://" not in str(path) and manifests.kind(manifests.load(Path(path))) == "samples":
        plain = wire.plain(SampleSummary, sample_summary(Path(path), verify, progress))
    else:
        plain = wire.plain(DataSummary, summary(path, verify, progress))
    return plain
