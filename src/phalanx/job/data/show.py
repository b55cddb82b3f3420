"""What `phalanx data show` tells about a prepared folder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError, SetupError
from phalanx.job.data import megatron, tokens
from phalanx.job.data.manifest import Source, Split, SplitCount
from phalanx.job.data.open import CHECKED_WHOLE, TokenData, open_data
from phalanx.job.data.verify import VerifyProgress

SAMPLE_TOKENS: Final = 96
SAMPLES: Final = 2
"""Of each split; of data in a store one of them all, since what is read there is fetched."""

_NONE_HELD_OUT: Final = "no document is held out: a recipe needs `eval_batches: 0` then, or make it again with a larger --held-out"

_LENGTHS_MAX: Final = 4 * 10**6
_LENGTHS_MAX_AFAR: Final = 10**5
"""Documents whose lengths are read, 20 bytes each: whole shards from the first one on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """`documents` with at least `least` tokens and at most `most`."""

    least: int
    most: int
    documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of the documents of the training split, end marks among them. counted: documents that were looked at, from the first
    one on."""

    counted: int
    least: int
    median: int
    mean: float
    most: int
    bins: tuple[LengthBin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSample:
    """`text` of a split from its token number `token` on."""

    split: Split
    token: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """A prepared folder at a glance. Damage that was met raises instead.

    manifest_hash: the name of the data in a model's lineage. bytes_per_token: of text, over both splits.
    checksums_ok: every file was read and compared; False only when that was not asked for.
    lengths: None where they are too many to look at. samples: stretches of text from here and there. note: what could not be shown,
    and why; else ''.
    """

    path: str
    manifest_hash: str
    tokens: int
    documents: int
    text_bytes: int
    bytes_per_token: float
    vocab_size: int
    dtype: str
    size_bytes: int
    checksums_ok: bool
    splits: Mapping[Split, SplitCount]
    sources: tuple[Source, ...]
    parameters: Mapping[str, str | int | float]
    lengths: Lengths | None
    samples: tuple[TextSample, ...]
    note: str = ""


def summary(path: Path | str, verify: bool = True, progress: VerifyProgress | None = None) -> DataSummary:
    """Raises DataError for a folder that `prepare` did not make, or that is damaged as far as was read."""
    data = open_data(path, verify, progress)
    manifest = data.manifest
    text_bytes = sum(split.text_bytes for split in manifest.splits.values())
    samples, note = _samples(data)
    return DataSummary(
        path=str(path),
        manifest_hash=data.manifest_hash,
        tokens=manifest.num_tokens,
        documents=sum(split.documents for split in manifest.splits.values()),
        text_bytes=text_bytes,
        bytes_per_token=round(text_bytes / manifest.num_tokens, 3),
        vocab_size=manifest.vocab_size,
        dtype=manifest.dtype,
        size_bytes=sum(entry.size_bytes for entry in manifest.files),
        checksums_ok=verify or manifest.format == CHECKED_WHOLE,
        splits=manifest.splits,
        sources=manifest.sources,
        parameters=manifest.parameters,
        lengths=_lengths(data),
        samples=samples,
        note=note,
    )


def _samples(data: TokenData) -> tuple[tuple[TextSample, ...], str]:
    try:
        tokenizer = tokens.load(data.tokenizer_path)
    except (SetupError, DataError) as error:
        return (), f"no text shown: {error.sentence()}"
    splits: Sequence[Split] = ("held_out", "train")
    found = []
    for split in splits:
        length = min(SAMPLE_TOKENS, data.num_tokens(split)) - 1
        if length < 1:
            continue
        for number in _spread(data.num_samples(split, length), 1 if data.cache else SAMPLES):
            (ids,) = data.gather(split, np.array([number]), length)
            text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
            found.append(TextSample(split=split, token=number * length, text=text))
        if data.cache:
            break
    return tuple(found), "" if data.num_tokens("held_out") else _NONE_HELD_OUT


def _spread(count: int, wanted: int) -> list[int]:
    """Numbers below `count`, the first one and others as far apart as can be."""
    return sorted({number * count // wanted for number in range(wanted)})


def _lengths(data: TokenData) -> Lengths | None:
    """Of as many whole shards as may be looked at."""
    counted, limit, found = 0, _LENGTHS_MAX_AFAR if data.cache else _LENGTHS_MAX, []
    for shard in data.manifest.shards:
        if shard.split != "train":
            continue
        counted += shard.documents
        if counted > limit:
            break
        found.append(megatron.index_lengths(data.small(shard.idx)))
    lengths = np.concatenate([np.zeros(0, dtype=np.int32), *found])
    if not lengths.size:
        return None
    return Lengths(
        counted=len(lengths),
        least=int(lengths.min()),
        median=int(np.median(lengths)),
        mean=round(float(lengths.mean()), 1),
        most=int(lengths.max()),
        bins=tuple(_bins(lengths)),
    )


def _bins(lengths: NDArray[np.int32]) -> Iterator[LengthBin]:
    """From power of two to power of two, from the first that has any to the last."""
    powers = np.frexp(lengths.astype(np.float64))[1]
    counts = np.bincount(powers)
    for power in range(int(powers.min()), len(counts)):
        yield LengthBin(least=1 << (power - 1) if power else 0, most=(1 << power) - 1, documents=int(counts[power]))
