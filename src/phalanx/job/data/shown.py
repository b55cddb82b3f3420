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
    plain: Mapping[str, Any]
    if "://" not in str(path) and manifests.kind(manifests.load(Path(path))) == "samples":
        plain = wire.plain(SampleSummary, sample_summary(Path(path), progress=progress))
    else:
        plain = wire.plain(DataSummary, summary(path, verify, progress))
    return plain
