"""`phalanx data sample`: what is shown is what is read, document by document."""

import dataclasses
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.core.data_asked import SampleAsked
from phalanx.core.data_views import SampleView
from phalanx.core.errors import DataError
from phalanx.core.training_data import DataSource, MixtureSource, Packing, WeightChange
from phalanx.job.data.documents import document_lengths
from phalanx.job.data.draws import batch
from phalanx.job.data.open import open_data
from phalanx.job.data.order import batch_indices
from phalanx.job.data.sampled import samples
from phalanx.job.data.sources import open_sources
from phalanx.job.data.tokens import END_OF_DOCUMENT
from tests.job.data.random_tokens import write_tokens


def asked(path: Path, packing: Packing = "concatenate", **given: Any) -> SampleAsked:
    least = SampleAsked(data=DataSource(path=str(path), packing=packing), sequence=100, most=1_000)
    return dataclasses.replace(least, **given)


def ids(sample: SampleView) -> list[int]:
    return [token for piece in sample.pieces for token in piece.ids]


def test_a_step_shows_the_rows_that_training_reads_in_their_order(prepared_once: Path) -> None:
    shown = samples(asked(prepared_once, step=30, batch=16, seed=5, ids=True))
    data = open_data(prepared_once)
    rows = batch_indices(5, 29, 16, data.num_samples("train", 100))
    assert [sample.sample for sample in shown.samples] == rows.tolist()
    assert [ids(sample) for sample in shown.samples] == data.gather("train", rows, 100).tolist()
    assert [sample.position for sample in shown.samples] == list(range(29 * 16, 30 * 16))
    assert {sample.epoch for sample in shown.samples} == {29 * 16 // data.num_samples("train", 100)}


def test_documents_end_to_end_with_their_bounds(prepared_once: Path, corpus: Path) -> None:
    """Also over the borders between shards. Every bound that is shown is one, and every end mark ends a document."""
    shown = samples(asked(prepared_once, sequence=9_000))
    whole: list[str] = []
    for sample in shown.samples:
        assert sum(piece.tokens for piece in sample.pieces) == 9_001 and sample.padding == 0
        assert all(piece.text.endswith(END_OF_DOCUMENT) for piece in sample.pieces[:-1])
        assert all(one.document + 1 == other.document and other.start == 0 for one, other in pairwise(sample.pieces))
        whole += [piece.text for piece in sample.pieces if piece.tokens == piece.document_tokens]
    texts = {path.read_bytes().decode() + END_OF_DOCUMENT for path in [*corpus.rglob("*.py"), corpus / "odd.txt"]}
    assert len(whole) > 3 and set(whole) <= texts


def test_whole_documents_in_rows_with_padding(prepared_once: Path, corpus: Path) -> None:
    shown = samples(asked(prepared_once, packing="best_fit", sequence=2_000, ids=True))
    lengths = document_lengths(open_data(prepared_once), "train")
    seen = np.zeros_like(lengths)
    for sample in shown.samples:
        assert sum(piece.tokens for piece in sample.pieces) + sample.padding == 2_001
        for piece in sample.pieces:
            seen[piece.document] += piece.tokens
            assert len(piece.ids) == piece.tokens
            if piece.document_tokens <= 2_001:
                assert piece.start == 0 and piece.text.endswith(END_OF_DOCUMENT)
    assert seen.tolist() == lengths.tolist(), "every token is read once, the last of the split too"


def test_some_of_many(prepared_once: Path) -> None:
    assert [sample.sample for sample in samples(asked(prepared_once, most=2)).samples] == [0, 1]
    shown = samples(asked(prepared_once, index=(7, 3, 5), most=2))
    assert ([sample.sample for sample in shown.samples], shown.left_out) == ([7, 3], 1)
    assert (shown.samples[0].position, shown.samples[0].epoch) == (None, None)


def test_a_step_of_a_mixture_shows_what_its_order_draws(tmp_path: Path) -> None:
    tokens = {name: write_tokens(tmp_path / name, [size, 300], seed=size) for name, size in (("web", 900), ("code", 500))}
    mixed = DataSource(
        sources={name: MixtureSource(path=str(tmp_path / name), weight=1) for name in tokens},
        changes=(WeightChange(from_step=5, weights={"code": 1}),),
    )
    of = SampleAsked(data=mixed, sequence=50, step=5, batch=8, seed=3)
    shown = samples(dataclasses.replace(of, most=6))
    assert (shown.left_out, shown.sources["code"].samples, shown.sources["web"].samples) == (2, 15, 23)
    drawn = batch(open_sources(mixed).order(50, seed=3, global_batch=8), 4)
    assert [(sample.source, sample.sample, sample.epoch) for sample in shown.samples] == [
        (("web", "code")[source], sample, epoch)
        for source, epoch, sample in zip(drawn.source.tolist(), drawn.epoch.tolist(), drawn.sample.tolist(), strict=True)
    ][:6]
    for sample in shown.samples:
        assert ids(sample) == tokens[sample.source][sample.sample * 50 : sample.sample * 50 + 51].tolist()
    after = samples(dataclasses.replace(of, step=6, most=8))
    assert {sample.source for sample in after.samples} == {"code"}, "the change is in force after 5 steps"
    one = samples(SampleAsked(data=mixed, sequence=50, source="code", index=(14,)))
    assert [(sample.source, sample.sample) for sample in one.samples] == [("code", 14)]
    with pytest.raises(DataError, match="web, code"):
        samples(SampleAsked(data=mixed, sequence=50))


def test_without_a_tokenizer_the_ids_are_shown(tmp_path: Path, prepared_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = write_tokens(tmp_path / "data", [500, 301])
    shown = samples(asked(tmp_path / "data", index=(4,)))
    assert ids(shown.samples[0]) == tokens[400:501].tolist() and "tokenizer.json" in shown.note
    assert [piece.document for piece in shown.samples[0].pieces] == [0, 1]
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "pip install" in samples(asked(prepared_once)).note


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"index": (-1,)}, "--index"),
        ({"index": (10**9,)}, "--index"),
        ({"step": 3}, "--batch"),
        ({"step": 0, "batch": 3}, "--step"),
        ({"step": 1, "batch": 3, "index": (1,)}, "--index"),
        ({"step": 1, "batch": 3, "split": "held_out"}, "--split"),
        ({"step": 1, "batch": 0}, "global_batch"),
        ({"step": 1, "batch": 3, "source": "data"}, "--source"),
        ({"source": "web"}, "--source"),
        ({"sequence": 0}, "--sequence"),
        ({"sequence": 10**9}, "samples of train"),
        ({"most": 0}, "-n"),
    ],
)
def test_what_cannot_be_shown_says_why(prepared_once: Path, given: dict[str, Any], field: str) -> None:
    with pytest.raises(DataError) as error:
        samples(asked(prepared_once, **given))
    assert error.value.field == field


def test_a_damaged_index_is_named(prepared: Path) -> None:
    path = next(prepared.glob("train-*.idx"))
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=path.name):
        samples(asked(prepared))
