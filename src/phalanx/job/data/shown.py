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
    plain: Mapping[str, Any]
    if manifests.kind(manifests.load(path)) == "samples":
        plain = wire.plain(SampleSummary, sample_summary(path, progress=progress))
    else:
        plain = wire.plain(DataSummary, summary(path, progress=progress))
    return plain
