"""What a manifest tells of the rows that documents give."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data import manifest as manifests
from phalanx.job.data.enough import Rows, check_held_out, held_out_share, rows_of
from phalanx.job.data.manifest import Manifest, SplitCount
from phalanx.job.data.packing import BestFit, Concatenate
from tests.drawn import examples
from tests.job.data.random_tokens import write_tokens


def test_rows_end_to_end_are_counted_and_those_of_whole_documents_bounded(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [10])
    some, _ = manifests.read(tmp_path / "data")

    @settings(max_examples=examples(60), deadline=None)
    @given(lengths=st.lists(st.integers(0, 40), max_size=30), sequence=st.integers(1, 30))
    def bounded(lengths: list[int], sequence: int) -> None:
        counted = _with(some, SplitCount(tokens=sum(lengths), documents=len(lengths), text_bytes=0))
        array = np.array(lengths, dtype=np.int64)
        exact = Concatenate(array, sequence).num_samples
        assert rows_of(counted, "train", sequence, "concatenate") == Rows(exact, exact)
        rows = rows_of(counted, "train", sequence, "best_fit")
        assert rows.least <= BestFit(array, sequence + 1).num_samples <= rows.most

    bounded()


@pytest.mark.parametrize(
    ("held", "samples", "share", "again"),
    [
        (14_500, 7, 0.11, "`--held-out 0.38`"),  # of few documents 0.11 gave 4.6 % of the tokens: to say 0.11 again is no advice
        (14_500, 7, 0.2, "prepare more text"),
        (40_000, 15, 0.11, "`--held-out 0.17`"),  # tokens enough, and too few rows of whole documents
        (14_500, 7, None, "`--held-out 0.16`"),  # where nothing says the share, that of the tokens
    ],
)
def test_the_share_that_is_advised_goes_by_what_the_present_one_gave(
    held: int, samples: int, share: float | None, again: str
) -> None:
    tokens = {"train": 315_000 - held, "held_out": held}
    with pytest.raises(DataError, match=f"prepare .*{again}" if share != 0.2 else again):
        check_held_out(tokens, samples, 2048, 16, share)  # type: ignore[arg-type]


def test_the_share_of_several_sources_is_the_largest(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [10])
    some, _ = manifests.read(tmp_path / "data")
    said = [replace(some, parameters=said) for said in ({"held_out": 0.05}, {"held_out": 0.11}, {}, {"held_out": "0.2"})]
    assert held_out_share(said) == 0.11
    assert held_out_share(said[2:]) is None


def _with(manifest: Manifest, count: SplitCount) -> Manifest:
    return replace(manifest, splits={**manifest.splits, "train": count})
