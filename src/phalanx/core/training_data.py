"""What a job trains on, as its spec says it: one prepared folder, or several mixed, and how rows are made of their documents."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote

from pydantic import ConfigDict

from phalanx.core import wire

Packing = Literal["concatenate", "best_fit"]
Attention = Literal["row", "document"]
OnBadData = Literal["stop", "quarantine"]

CACHE_UNIT_BYTES: Final = 8 * 2**20
"""What data comes in from a store, and lies in a node's cache; no limit of one is smaller."""

CACHE_VARIABLE: Final = "PHALANX_DATA_CACHE"
CACHE_LIMIT_VARIABLE: Final = "PHALANX_DATA_CACHE_LIMIT"

ONE: Final = "data"
"""The name of the only source, where there is but `path`."""

DATA_VARIABLE: Final = "PHALANX_DATA"
"""Where a rank finds the path of a single data set."""

DATA_SPEC_VARIABLE: Final = "PHALANX_DATA_SPEC"
"""Where it finds all of `data` as JSON, when that says more than a path."""

_FOLDER_URL: Final = "file:///"
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A shuffle for data that is read from a store, in which samples that are read together lie together.

    block_samples: neighbouring samples that are read at once.
    window_blocks: blocks whose samples are mixed with one another; a reader holds about two windows.
    """

    __pydantic_config__ = _STRICT

    block_samples: int
    window_blocks: int

    @property
    def window(self) -> int:
        """Samples that are mixed with one another."""
        return self.block_samples * self.window_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCache:
    """Where each node keeps what the job reads from stores.

    folder: of each node, beside others' for all jobs that name it. limit: of its size, such as `200GiB`. What is left out is said
    by the node's environment.
    """

    __pydantic_config__ = _STRICT

    folder: str = ""
    limit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSource:
    """One data set of a mixture.

    path: the prepared folder.
    weight: its share of all samples, beside the others' weights; 0 for one that has its share only from a later change on.
    epochs: instead of a weight, how often it is read while the whole mixture is read once. Neither, for all sources: by size.
    """

    __pydantic_config__ = _STRICT

    path: str
    weight: float | None = None
    epochs: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChange:
    """Other weights from a step on.

    from_step: the first step, counted from 0, that has them.
    weights: by source; one that is left out is not read from then on.
    """

    __pydantic_config__ = _STRICT

    from_step: int
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Token shards made by `phalanx data prepare`: those of `path`, or a mixture of `sources`.

    path: the prepared folder.
    sources: by name; the order of a source depends on its name.
    temperature: for sources without weights, their sizes are raised to 1 / temperature; above 1 it evens the sources out.
    changes: of the weights, in the order of their steps.
    packing: `concatenate` lays documents end to end and cuts them at the rows' ends; `best_fit` cuts none that fits into a row.
    attention: of a token to those before it in its `row`, or in its `document` alone, whose positions begin at 0. Left out, it is
        by `row` where documents are concatenated, and by `document` where they are packed whole.
    shuffle: `full`, `in_order`, or by blocks.
    on_bad_data: what is done about a block that is damaged, also when it was fetched again: `stop`, or `quarantine`, which reads
        other samples instead, and says so in every checkpoint.
    bad_data_max: of the samples of a source, the share that may be replaced; beyond, the run stops.
    record: whether each rank of a job records what it was given, 20 bytes a sample, for `phalanx data audit`.
    cache: of each node, for what lies in stores.
    """

    __pydantic_config__ = _STRICT

    path: str = ""
    sources: Mapping[str, MixtureSource] = field(default_factory=dict)
    temperature: float | None = None
    changes: tuple[WeightChange, ...] = ()
    packing: Packing = "concatenate"
    attention: Attention | None = None
    shuffle: Literal["full", "in_order"] | Blocks = "full"
    on_bad_data: OnBadData = "stop"
    bad_data_max: float = 0.01
    record: bool = True
    cache: DataCache = DataCache()

    @property
    def paths(self) -> dict[str, str]:
        """Prepared folders, by the name of the source."""
        return {name: source.path for name, source in self.sources.items()} if self.sources else {ONE: self.path}

    @property
    def by_document(self) -> bool:
        """Whether documents of one row are told apart."""
        return self.packing == "best_fit" or self.attention == "document"

    @property
    def is_plain(self) -> bool:
        """Whether its path says all."""
        return self == DataSource(path=self.path)

    @property
    def is_read_plainly(self) -> bool:
        """Whether its samples and their order are those of a path alone."""
        plain = DataSource(path=self.path)
        said = replace(self, on_bad_data=plain.on_bad_data, bad_data_max=plain.bad_data_max, record=plain.record, cache=plain.cache)
        return said == plain

    @property
    def folders(self) -> tuple[str, ...]:
        """Of prepared data on this machine, each once."""
        return tuple(sorted({path for path in self.paths.values() if not in_store(path)}))

    def field_of(self, name: str) -> str:
        """Where the path of this source stands in the job spec."""
        return f"data.sources.{name}.path" if self.sources else "data.path"

    def anchored(self, folder: Path) -> "DataSource":
        """With relative paths made absolute from `folder`."""
        path = place_from(folder, self.path) if self.path else ""
        sources = {name: replace(source, path=place_from(folder, source.path)) for name, source in self.sources.items()}
        return replace(self, path=path, sources=sources)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Of a node by its environment: PHALANX_DATA_CACHE, else a folder in XDG_CACHE_HOME or ~/.cache; '~' stands as it is."""
    return Path(environ.get(CACHE_VARIABLE) or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "phalanx" / "data")


def in_store(path: str) -> bool:
    """Whether it is a place such as s3://bucket/prefix, and not a folder."""
    return "://" in path


def place_from(folder: Path, path: str) -> str:
    """A relative path made absolute from `folder`; a place in a store as it is."""
    if path.startswith(_FOLDER_URL):  # a folder like any other: looked at when the job is submitted, and there in a container
        path = unquote(path.removeprefix("file://"))
    return path if in_store(path) else str((folder / path).resolve())


def data_of(env: Mapping[str, str]) -> DataSource | None:
    """As a rank's environment says it; None for a job without data. Raises ValueError for what no spec has."""
    if env.get(DATA_SPEC_VARIABLE):
        data: DataSource = wire.loads(DataSource, env[DATA_SPEC_VARIABLE])
        return data
    return DataSource(path=env[DATA_VARIABLE]) if env.get(DATA_VARIABLE) else None
