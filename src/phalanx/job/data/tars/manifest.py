"""What a folder of samples says about itself: the `manifest.json` of tar files and their indices, written last."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from phalanx.core import wire
from phalanx.core.errors import DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data.manifest import MANIFEST, REMAKE, FileEntry
from phalanx.storage.atomic import write_atomic

FORMAT: Final = 1
REINDEX: Final = "index its tar files again with `phalanx data index`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShard:
    """Two files NAME.tar and NAME.index: a WebDataset tar of `samples` samples, and where their fields lie in it."""

    name: str
    samples: int
    tar_bytes: int
    tar_sha256: str
    index_bytes: int
    index_sha256: str

    @classmethod
    def of(cls, samples: int, *, tar: FileEntry, index: FileEntry) -> "SampleShard":
        return cls(
            name=tar.name.removesuffix(".tar"),
            samples=samples,
            tar_bytes=tar.size_bytes,
            tar_sha256=tar.sha256,
            index_bytes=index.size_bytes,
            index_sha256=index.sha256,
        )

    @property
    def tar(self) -> FileEntry:
        return FileEntry(name=f"{self.name}.tar", size_bytes=self.tar_bytes, sha256=self.tar_sha256)

    @property
    def index(self) -> FileEntry:
        return FileEntry(name=f"{self.name}.index", size_bytes=self.index_bytes, sha256=self.index_sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCount:
    """In how many samples a field occurs, and its bytes in all of them."""

    samples: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleManifest:
    """The same tar files give the same manifest, byte for byte.

    fields: by name. classes: by the number that the field `cls` holds; none where nobody said them. skipped: members or files that
    belong to no sample, by reason. parameters: what the folder was made from, and how.
    """

    kind: Literal["samples"]
    format: int
    samples: int
    fields: Mapping[str, FieldCount]
    classes: tuple[str, ...]
    skipped: Mapping[str, int]
    shards: tuple[SampleShard, ...]
    parameters: Mapping[str, str | int | float]

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file that the folder needs besides the manifest."""
        return tuple(entry for shard in self.shards for entry in (shard.tar, shard.index))


def commit(folder: Path, manifest: SampleManifest) -> None:
    """Makes the folder a data set: everything that the manifest names is on the disk."""
    write_atomic(folder / MANIFEST, wire.dumps(SampleManifest, manifest).encode() + b"\n")


def read(folder: Path) -> tuple[SampleManifest, bytes]:
    """The manifest of a folder of samples and its bytes. Raises DataError when there is none that this version can read."""
    data = manifests.load(folder)
    return parse(data, str(folder / MANIFEST)), data


def parse(data: bytes, path: str) -> SampleManifest:
    """Of the bytes of a manifest.json. path: where it lies, for errors. Raises DataError."""
    if manifests.kind(data) != "samples":
        manifests.parse(data, path)  # what is no manifest at all is said there
        fix = "holds tokens, not samples: read it with `open_data`, or name a folder made by `phalanx data index`"
        raise DataError("data", path.rpartition("/")[0], fix)
    try:
        manifest: SampleManifest = wire.loads(SampleManifest, data)
    except ValueError as error:
        raise DataError("manifest", path, f"is not a manifest of ours ({error}); {REINDEX}") from error
    if manifest.format > FORMAT:
        raise DataError("format", manifest.format, f"{path} was made by a newer Phalanx (this one reads {FORMAT}); upgrade it")
    _check(manifest, path)
    return manifest


def of_either(data: bytes, path: str) -> manifests.Manifest | SampleManifest:
    """Of the bytes of any manifest.json, by what it says it is of. path: where it lies, for errors. Raises DataError."""
    return parse(data, path) if manifests.kind(data) == "samples" else manifests.parse(data, path)


def of_samples(error: DataError) -> DataError:
    """What is said of a file of tokens, said of one of samples: they are made again otherwise."""
    return DataError(error.field, error.value, error.fix.replace(REMAKE, REINDEX))


def _check(manifest: SampleManifest, path: str) -> None:
    if not manifest.shards:
        raise DataError("manifest", path, f"lists no shard; {REINDEX}")
    for shard in manifest.shards:
        if not manifests.is_plain(shard.name):
            raise DataError("manifest", shard.name, f"{path} names a file outside its folder; {REINDEX}")
        if shard.samples < 1 or shard.tar_bytes < 1 or shard.index_bytes < 1:
            raise DataError(shard.tar.name, shard.samples, f"{path} lists a shard without samples; {REINDEX}")
    if (found := sum(shard.samples for shard in manifest.shards)) != manifest.samples:
        raise DataError("samples", found, f"{path} does not count the samples of its own shards; {REINDEX}")
