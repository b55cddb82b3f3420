"""What a manifest tells of the rows that documents give."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.job.data import manifest as manifests
from phalanx.job.data.enough import Rows, rows_of
from phalanx.job.data.manifest import Manifest, SplitCount
from phalanx.job.data.packing import BestFit, Concatenate
from tests.job.data.random_tokens import write_tokens


def test_rows_end_to_end_are_counted_and_those_of_whole_documents_bounded(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [10])
    some, _ = manifests.read(tmp_path / "data")

    @settings(max_examples=60, deadline=None)
    @given(lengths=st.lists(st.integers(0, 40), max_size=30), sequence=st.integers(1, 30))
    def bounded(lengths: list[int], sequence: int) -> None:
        counted = _with(some, SplitCount(tokens=sum(lengths), documents=len(lengths), text_bytes=0))
        array = np.array(lengths, dtype=np.int64)
        exact = Concatenate(array, sequence).num_samples
        assert rows_of(counted, "train", sequence, "concatenate") == Rows(exact, exact)
        rows = rows_of(counted, "train", sequence, "best_fit")
        assert rows.least <= BestFit(array, sequence + 1).num_samples <= rows.most

    bounded()


def _with(manifest: Manifest, count: SplitCount) -> Manifest:
    return replace(manifest, splits={**manifest.splits, "train": count})
