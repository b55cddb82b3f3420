"""Packing: every token once, only long documents cut, rows as full as best-fit leaves them, and bounds that say where documents
meet."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data.best_fit import best_fit
from phalanx.job.data.open import open_data
from phalanx.job.data.order import Indices
from phalanx.job.data.packing import BestFit, Concatenate
from phalanx.job.data.pieces import Pieces

LENGTHS = st.lists(st.integers(0, 60), max_size=60).map(lambda lengths: np.array(lengths, dtype=np.int32))
WIDTHS = st.integers(1, 25)
RUNS = st.integers(1, 70)


def begins(lengths: np.ndarray) -> Indices:
    return np.asarray(np.cumsum(lengths, dtype=np.int64) - lengths)


def everything(packing: BestFit | Concatenate) -> Pieces:
    return packing.pieces(np.arange(packing.num_samples))


@given(lengths=LENGTHS, width=WIDTHS, run=RUNS)
def test_best_fit_reads_every_token_once_and_cuts_only_long_documents(lengths: np.ndarray, width: int, run: int) -> None:
    packing = BestFit(lengths, width, run)
    pieces = everything(packing)
    tokens = pieces.tokens(begins(lengths))
    assert np.sort(tokens[tokens >= 0]).tolist() == list(range(int(lengths.sum())))
    whole = lengths[pieces.document] <= width
    assert pieces.length[whole].tolist() == lengths[pieces.document[whole]].tolist()
    assert packing.padding == pytest.approx((tokens < 0).mean() if tokens.size else 0)
    spread = [np.ptp(pieces.document[a:b] // run) for a, b in zip(pieces.first[:-1], pieces.first[1:], strict=True)]
    assert not any(spread), "a row's documents are of one run"


@given(lengths=LENGTHS, sequence=WIDTHS)
def test_concatenated_rows_are_windows_over_the_tokens(lengths: np.ndarray, sequence: int) -> None:
    packing = Concatenate(lengths, sequence)
    assert packing.num_samples == max(0, (int(lengths.sum()) - 1) // sequence)
    pieces = everything(packing)
    assert pieces.tokens(begins(lengths)).tolist() == [
        list(range(row * sequence, row * sequence + sequence + 1)) for row in range(packing.num_samples)
    ]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for row in range(packing.num_samples):
        assert pieces.document[pieces.first[row] : pieces.first[row + 1]].tolist() == sorted(
            set(owner[row * sequence : row * sequence + sequence + 1].tolist())
        )


def one_by_one(lengths: list[int], width: int) -> list[int]:
    """Best-fit decreasing as it is written down: each piece alone, looking at every row."""
    free: list[int] = []
    since: list[int] = []
    found = [0] * len(lengths)
    for turn, piece in enumerate(sorted(range(len(lengths)), key=lambda piece: -lengths[piece])):
        fits = [row for row in range(len(free)) if free[row] >= lengths[piece]]
        row = min(fits, key=lambda row: (free[row], since[row])) if fits else len(free)
        if not fits:
            free.append(width)
            since.append(turn)
        free[row] -= lengths[piece]
        since[row] = turn
        found[piece] = row
    return found


@given(lengths=st.lists(st.integers(1, 40), max_size=120), width=st.integers(40, 50))
def test_placing_equal_pieces_together_is_best_fit_decreasing(lengths: list[int], width: int) -> None:
    assert best_fit(np.array(lengths, dtype=np.int64), width).tolist() == one_by_one(lengths, width)


@given(lengths=LENGTHS, width=WIDTHS, run=RUNS, data=st.data())
def test_rows_are_the_same_whatever_is_asked_beside_them(lengths: np.ndarray, width: int, run: int, data: st.DataObject) -> None:
    for packing in (BestFit(lengths, width, run), Concatenate(lengths, width)):
        if not packing.num_samples:
            continue
        asked = np.array(data.draw(st.lists(st.integers(0, packing.num_samples - 1), max_size=6)), dtype=np.int64)
        whole = everything(packing).tokens(begins(lengths))
        assert packing.pieces(asked).tokens(begins(lengths)).tolist() == whole[asked].tolist()


@given(lengths=LENGTHS, width=WIDTHS, run=RUNS)
def test_bounds_positions_segments_and_targets_agree(lengths: np.ndarray, width: int, run: int) -> None:
    for packing in (BestFit(lengths, width, run), Concatenate(lengths, width)):
        pieces = everything(packing)
        positions, segments = pieces.positions(), pieces.segments()
        for row in range(len(pieces)):
            first, last = pieces.first[row], pieces.first[row + 1]
            sizes = pieces.length[first:last].tolist()
            free = pieces.width - sum(sizes)
            assert positions[row].tolist() == [place for size in sizes for place in range(size)] + [0] * free
            assert segments[row].tolist() == [n for n, size in enumerate(sizes) for _ in range(size)] + [-1] * free
        flat = (np.arange(len(pieces))[:, None] * (width + 99) + segments).reshape(-1)
        changes = np.flatnonzero(np.diff(flat)) + 1
        assert pieces.cu_seqlens().tolist() == sorted({0, *changes.tolist(), flat.size})
        assert pieces.inputs().segments().tolist() == segments[:, :-1].tolist()
        assert pieces.counted().sum() == (pieces.length - 1).sum(), "each token of a piece but its first is foretold"


def test_concatenated_rows_are_what_prepared_data_gathers(prepared_once: Path) -> None:
    data = open_data(prepared_once, verify=False)
    count, sequence = data.num_tokens("train"), 64
    tokens = data.gather("train", np.arange(count - 1), 1)
    flat = np.append(tokens[:, 0], tokens[-1, 1])
    lengths = np.diff(np.concatenate([[0], np.flatnonzero(flat == data.end_of_document) + 1]))
    packing = Concatenate(lengths, sequence)
    rows = np.random.default_rng(0).permutation(packing.num_samples)[:200]
    pieces = packing.pieces(rows)
    assert packing.num_samples == data.num_samples("train", sequence)
    assert flat[pieces.tokens(begins(lengths))].tolist() == data.gather("train", rows, sequence).tolist()
    assert (flat[pieces.tokens(begins(lengths))][:, :-1][~pieces.counted()] == data.end_of_document).all()


def test_best_fit_packs_real_documents_almost_whole() -> None:
    """Files of this machine's Python, three bytes a token: most rows full, and few documents cut."""
    lengths = np.array([max(1, path.stat().st_size // 3) for path in sorted(Path(pytest.__file__).parents[1].rglob("*.py"))[:4000]])
    packing = BestFit(lengths, 2049)
    concatenated = everything(Concatenate(lengths, 2048))
    assert packing.padding < 0.02
    short = lengths <= 2049
    cut = np.bincount(concatenated.document, minlength=len(lengths)) > 1
    assert cut[short].sum() > 200, "which best-fit leaves whole"
    assert packing.num_samples <= (concatenated.width - 1) / packing.width * len(concatenated) / (1 - packing.padding) + 2


def test_counts_of_an_earlier_packing_save_packing_all_and_must_fit() -> None:
    lengths = np.arange(1, 200) % 37 + 1
    packing = BestFit(lengths, 50, run_documents=20)
    again = BestFit(lengths, 50, run_documents=20, counts=packing.counts)
    rows = np.arange(packing.num_samples)[::-3]
    assert again.pieces(rows).document.tolist() == packing.pieces(rows).document.tolist()
    with pytest.raises(DataError, match="leave counts out"):
        BestFit(lengths, 50, run_documents=21, counts=packing.counts[:-1])
    with pytest.raises(DataError, match="run 0 has"):
        BestFit(lengths, 50, run_documents=20, counts=[count + 1 for count in packing.counts]).pieces(np.array([0]))


def test_packings_are_fixed_for_ever() -> None:
    """Golden: a change here would silently change what every resumed run reads."""
    pieces = everything(BestFit(np.array([3, 9, 4, 25, 1, 6, 2, 10, 5]), 10, run_documents=6))
    rows = [
        list(zip(*(column[a:b].tolist() for column in (pieces.document, pieces.start, pieces.length)), strict=True))
        for a, b in zip(pieces.first[:-1], pieces.first[1:], strict=True)
    ]
    assert rows == GOLDEN


GOLDEN = [
    [(0, 0, 3), (3, 20, 5)],
    [(1, 0, 9), (4, 0, 1)],
    [(2, 0, 4), (5, 0, 6)],
    [(3, 0, 10)],
    [(3, 10, 10)],
    [(6, 0, 2), (8, 0, 5)],
    [(7, 0, 10)],
]


def test_what_cannot_be_is_refused() -> None:
    lengths = np.array([5, 6])
    for make in (lambda: Concatenate(lengths, 0), lambda: BestFit(lengths, 0)):
        with pytest.raises(DataError, match="sequence"):
            make()
    with pytest.raises(DataError, match="run_documents"):
        BestFit(lengths, 4, 0)
    with pytest.raises(DataError, match="less than no tokens"):
        BestFit(np.array([5, -1]), 4)
    with pytest.raises(IndexError):
        BestFit(lengths, 4).pieces(np.array([4]))
    assert BestFit(np.zeros(0, dtype=np.int32), 4).num_samples == Concatenate(np.zeros(3, dtype=np.int32), 4).num_samples == 0
