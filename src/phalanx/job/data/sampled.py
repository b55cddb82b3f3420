"""What a model reads, for people: `phalanx data sample`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from phalanx.core.data_asked import SampleAsked
from phalanx.core.data_views import PieceView, SampledView, SamplesView, SampleView
from phalanx.core.errors import DataError, SetupError
from phalanx.job.data import draws, tokens
from phalanx.job.data.manifest import Split
from phalanx.job.data.open import TokenData
from phalanx.job.data.order import Indices
from phalanx.job.data.packing import Packing
from phalanx.job.data.sources import Sources, open_sources

Decode = Callable[[list[int]], str]

_MOST_MAX: Final = 1_000


def samples(asked: SampleAsked) -> SamplesView:
    """Raises DataError for what is not there, or is damaged."""
    _check(asked)
    data = open_sources(asked.data)
    sizes = data.sizes(asked.split, asked.sequence)
    drawn, first = _drawn(asked, data, sizes)
    decode, note = _decoder(data.first)
    laid: dict[int, _Laid] = {}
    shown = []
    for row in range(min(len(drawn), asked.most)):
        source, sample = int(drawn.source[row]), int(drawn.sample[row])
        if source not in laid:
            laid[source] = _Laid.of(asked, data, data.names[source])
        pieces, padding = laid[source].pieces(sample, decode, asked.ids or bool(note))
        numbers = {} if first is None else {"position": first + row, "epoch": int(drawn.epoch[row])}
        shown.append(SampleView(source=data.names[source], sample=sample, pieces=pieces, padding=padding, **numbers))
    return SamplesView(
        split=asked.split, sequence=asked.sequence, packing=asked.data.packing,
        sources={
            name: SampledView(path=asked.data.paths[name], manifest_hash=one.manifest_hash, samples=sizes[name])
            for name, one in data.opened.items()
        },
        samples=tuple(shown), step=asked.step, batch=asked.batch if asked.step else None, seed=asked.seed if asked.step else None,
        left_out=len(drawn) - len(shown), note=note,
    )  # fmt: skip


def _check(asked: SampleAsked) -> None:
    if not 1 <= asked.most <= _MOST_MAX:
        raise DataError("-n", asked.most, f"write a whole number from 1 to {_MOST_MAX}")
    if asked.sequence < 1:
        raise DataError("--sequence", asked.sequence, "write a whole number above 0")
    if asked.step is None:
        return
    if asked.step < 1:
        raise DataError("--step", asked.step, "write a whole number above 0: the first step of a run is 1")
    if asked.batch is None:
        raise DataError("--batch", None, "give it with --step: how many samples a step has over all ranks")
    if asked.index or asked.source:
        field, value = ("--index", asked.index[0]) if asked.index else ("--source", asked.source)
        raise DataError(field, value, "names samples, and --step those of a run's step; give one of them")
    if asked.split != "train":
        raise DataError("--split", asked.split, "has no steps: a run's steps read from train; give --index instead")


def _drawn(asked: SampleAsked, data: Sources, sizes: dict[str, int]) -> tuple[draws.Draws, int | None]:
    """The samples that were asked for, and the number in the run of the first one."""
    if asked.step is not None and asked.batch is not None:
        order = data.order(asked.sequence, seed=asked.seed, global_batch=asked.batch)
        return draws.batch(order, asked.step - 1), (asked.step - 1) * asked.batch
    name = asked.source or data.names[0]
    if name not in sizes or (len(sizes) > 1 and not asked.source):
        fix = f"name one of {', '.join(data.names)}, or a step of the run"
        raise DataError("--source", asked.source or None, fix)
    size = sizes[name]
    if size == 0:
        fix = f"the split is shorter than one sequence of {asked.sequence} tokens; prepare more text or lower --sequence"
        raise DataError(f"samples of {asked.split}", 0, fix)
    if outside := [index for index in asked.index if not 0 <= index < size]:
        raise DataError("--index", outside[0], f"{asked.split} has {size} samples; write 0 to {size - 1}")
    index = np.array(asked.index or range(min(size, asked.most)), dtype=np.int64)
    return draws.Draws(np.full_like(index, data.names.index(name)), np.zeros_like(index), index), None


@dataclass(frozen=True, slots=True)
class _Laid:
    """A source, and how its documents lie in its samples."""

    data: TokenData
    split: Split
    packing: Packing
    begins: Indices
    lengths: Indices

    @classmethod
    def of(cls, asked: SampleAsked, data: Sources, name: str) -> "_Laid":
        packing, begins = data.packing(name, asked.split, asked.sequence)
        one = data.opened[name]
        return cls(one, asked.split, packing, begins, np.diff(begins, append=one.num_tokens(asked.split)))

    def pieces(self, sample: int, decode: Decode, ids: bool) -> tuple[tuple[PieceView, ...], int]:
        """And the padding after them."""
        pieces = self.packing.pieces(np.array([sample], dtype=np.int64))
        row = np.empty((1, pieces.width), dtype=np.int64)
        self.data.gather_pieces(self.split, pieces, self.begins, row)
        parts, at = [], 0
        for document, start, length in zip(pieces.document.tolist(), pieces.start.tolist(), pieces.length.tolist(), strict=True):
            found = row[0, at : at + length].tolist()
            at += length
            parts.append(
                PieceView(
                    document=document,
                    start=start,
                    tokens=length,
                    document_tokens=int(self.lengths[document]),
                    text=decode(found),
                    ids=tuple(found) if ids else (),
                )
            )
        return tuple(parts), pieces.width - at


def _decoder(data: TokenData) -> tuple[Decode, str]:
    """And why there is none."""
    try:
        tokenizer = tokens.load(data.tokenizer_path)
    except (SetupError, DataError) as error:
        return _nothing, f"no text shown, token ids instead: {error.sentence()}"
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)), ""


def _nothing(ids: Sequence[int]) -> str:
    return ""
