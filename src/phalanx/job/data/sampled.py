"""What a model reads, for people: `phalanx data sample`."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from phalanx.core.data_asked import SampleAsked
from phalanx.core.data_views import PieceView, SamplesView, SampleView
from phalanx.core.errors import DataError, SetupError
from phalanx.job.data import draws, tokens
from phalanx.job.data.documents import document_lengths
from phalanx.job.data.manifest import Split
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.order import Indices
from phalanx.job.data.packing import BestFit, Concatenate, Lengths, Packing
from phalanx.job.data.pieces import Pieces

Decode = Callable[[list[int]], str]

_MOST_MAX: Final = 1_000


def samples(asked: SampleAsked) -> SamplesView:
    """Raises DataError for what is not there, or is damaged."""
    _check(asked)
    data = open_data(asked.path)
    lengths = document_lengths(data, asked.split)
    packing = _packing(asked, lengths)
    if packing.num_samples == 0:
        fix = f"the split is shorter than one sequence of {asked.sequence} tokens; prepare more text or lower --sequence"
        raise DataError(f"samples of {asked.split}", 0, fix)
    drawn, position = _drawn(asked, packing.num_samples)
    shown = drawn.sample[: asked.most]
    decode, note = _decoder(data)
    pieces = packing.pieces(shown)
    rows = _tokens(data, asked.split, pieces, lengths)
    views = [_view(pieces, rows, row, lengths, decode, asked.ids or bool(note)) for row in range(len(shown))]
    return SamplesView(
        path=str(asked.path), manifest_hash=data.manifest_hash, split=asked.split, sequence=asked.sequence, packing=asked.packing,
        num_samples=packing.num_samples, step=asked.step, batch=asked.batch, seed=None if asked.step is None else asked.seed,
        samples=tuple(
            SampleView(
                sample=int(shown[row]), pieces=parts, padding=padding,
                position=None if position is None else int(position[row]),
                epoch=None if position is None else int(drawn.epoch[row]),
            )
            for row, (parts, padding) in enumerate(views)
        ),
        left_out=len(drawn) - len(shown), note=note,
    )  # fmt: skip


def _check(asked: SampleAsked) -> None:
    if not 1 <= asked.most <= _MOST_MAX:
        raise DataError("-n", asked.most, f"write a whole number from 1 to {_MOST_MAX}")
    if asked.sequence < 1:
        raise DataError("--sequence", asked.sequence, "write a whole number above 0")
    if (asked.step is None) != (asked.batch is None):
        lacking = "--batch, the samples of one step over all ranks" if asked.batch is None else "--step"
        raise DataError("--step and --batch", asked.step or asked.batch, f"give {lacking}, too")
    if asked.step is None:
        return
    if asked.step < 1:
        raise DataError("--step", asked.step, "write a whole number above 0: the first step of a run is 1")
    if asked.index:
        raise DataError("--index", asked.index[0], "names a sample and --step those of a run's step; give one of them")
    if asked.split != "train":
        raise DataError("--split", asked.split, "has no steps: a run's steps read from train; give --index instead")


def _packing(asked: SampleAsked, lengths: Lengths) -> Packing:
    return Concatenate(lengths, asked.sequence) if asked.packing == "concatenate" else BestFit(lengths, asked.sequence + 1)


def _drawn(asked: SampleAsked, num_samples: int) -> tuple[draws.Draws, Indices | None]:
    """The samples that were asked for, and where they stand in a run."""
    if asked.step is not None and asked.batch is not None:
        order = draws.PlainOrder(num_samples=num_samples, seed=asked.seed, global_batch=asked.batch)
        return draws.batch(order, asked.step - 1), draws.positions(order, asked.step - 1)
    if outside := [index for index in asked.index if not 0 <= index < num_samples]:
        raise DataError("--index", outside[0], f"{asked.split} has {num_samples} samples; write 0 to {num_samples - 1}")
    index = np.array(asked.index or range(min(num_samples, asked.most)), dtype=np.int64)
    return draws.Draws(np.zeros_like(index), np.zeros_like(index), index), None


def _tokens(data: TokenData, split: Split, pieces: Pieces, lengths: Lengths) -> Indices:
    """[rows, width]; -1 where there is none."""
    ends = np.cumsum(lengths, dtype=np.int64)
    places = pieces.tokens(ends - lengths)
    last = data.num_tokens(split) - 2  # of the pairs of neighbours that are gathered, each from its first token
    first = np.clip(places, 0, last)
    pairs = data.gather(split, first.reshape(-1), 1)
    rows = pairs[np.arange(len(pairs)), (places > last).reshape(-1).astype(np.int64)].reshape(places.shape)
    return np.where(places < 0, -1, rows)


def _view(
    pieces: Pieces, rows: Indices, row: int, lengths: Lengths, decode: Decode, ids: bool
) -> tuple[tuple[PieceView, ...], int]:
    parts, at = [], 0
    for piece in range(int(pieces.first[row]), int(pieces.first[row + 1])):
        length, document = int(pieces.length[piece]), int(pieces.document[piece])
        found = rows[row, at : at + length].tolist()
        parts.append(
            PieceView(
                document=document,
                start=int(pieces.start[piece]),
                tokens=length,
                document_tokens=int(lengths[document]),
                text=decode(found),
                ids=tuple(found) if ids else (),
            )
        )
        at += length
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
