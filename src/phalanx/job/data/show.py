"""What `phalanx data show` tells about a prepared folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from phalanx.core.errors import SetupError
from phalanx.job.data import tokens
from phalanx.job.data.manifest import Source, Split, SplitCount
from phalanx.job.data.open import CHECKED_WHOLE, TokenData, open_data
from phalanx.job.data.verify import VerifyProgress

TASTE_LINES: Final = 5
_TASTE_TOKENS: Final = 256
_LINE_CHARS_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """A prepared folder at a glance. Damage that was met raises instead.

    manifest_hash: the name of the data in a model's lineage. bytes_per_token: of text, over both splits.
    checksums_ok: every file was read and compared; False only when that was not asked for.
    taste: a few lines from the held-out text, decoded. note: what could not be shown, and why; else ''.
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
    taste: tuple[str, ...]
    note: str = ""


def summary(path: Path | str, verify: bool = True, progress: VerifyProgress | None = None) -> DataSummary:
    """Raises DataError for a folder that `prepare` did not make, or that is damaged as far as was read."""
    data = open_data(path, verify, progress)
    manifest = data.manifest
    text_bytes = sum(split.text_bytes for split in manifest.splits.values())
    taste, note = _taste(data)
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
        taste=taste,
        note=note,
    )


def _taste(data: TokenData) -> tuple[tuple[str, ...], str]:
    try:
        tokenizer = tokens.load(data.tokenizer_path)
    except SetupError as error:
        return (), f"no text shown: {error.field} is {error.value}, {error.fix}"
    length = min(_TASTE_TOKENS, data.num_tokens("held_out") - 1)
    if length < 1:
        return (), "no text shown: the held-out split is empty"
    ids = data.gather("held_out", np.zeros(1, dtype=np.int64), length)[0]
    lines = [line.rstrip() for line in tokenizer.decode(ids.tolist()).splitlines()]
    return tuple(line[:_LINE_CHARS_MAX] for line in lines if line)[:TASTE_LINES], ""
