"""What `phalanx data show` tells about a folder of samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.job.data.tars.manifest import FieldCount
from phalanx.job.data.tars.open import open_samples
from phalanx.job.data.verify import VerifyProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSummary:
    """A folder of samples at a glance. Damage that was met raises instead.

    manifest_hash: the name of the data in a model's lineage. checksums_ok: every file was read and compared; False only when that
    was not asked for. skipped: members or files that belong to no sample, by reason. first: the key of the first sample.
    """

    path: str
    manifest_hash: str
    samples: int
    shards: int
    size_bytes: int
    checksums_ok: bool
    fields: Mapping[str, FieldCount]
    classes: tuple[str, ...]
    skipped: Mapping[str, int]
    parameters: Mapping[str, str | int | float]
    first: str


def sample_summary(path: Path | str, verify: bool = True, progress: VerifyProgress | None = None) -> SampleSummary:
    """Raises DataError for a folder that holds no samples, or that is damaged as far as was read."""
    data = open_samples(path, verify, progress)
    manifest = data.manifest
    return SampleSummary(
        path=str(path),
        manifest_hash=data.manifest_hash,
        samples=len(data),
        shards=len(manifest.shards),
        size_bytes=sum(entry.size_bytes for entry in manifest.files),
        checksums_ok=verify,
        fields=manifest.fields,
        classes=manifest.classes,
        skipped=manifest.skipped,
        parameters=manifest.parameters,
        first=data.key(0) if len(data) else "",
    )
