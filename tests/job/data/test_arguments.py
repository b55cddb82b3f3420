"""A wrong argument from a user's own code is one error that names it, where it is given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.core.errors import DataError
from phalanx.core.training_data import DataSource
from phalanx.job.data.draws import PlainOrder, rows_of_rank
from phalanx.job.data.from_megatron import import_megatron
from phalanx.job.data.imported import ImportAsked
from phalanx.job.data.mds.export import export
from phalanx.job.data.mds.tokens import TokensAsked, import_tokens
from phalanx.job.data.mixture import Change, Mixture, Source
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.prepare import prepare
from phalanx.job.data.push import push
from phalanx.job.data.sound import BadData
from phalanx.job.data.sources import Sources, open_sources
from phalanx.job.data.stream import BatchStream
from phalanx.job.data.tars.open import open_samples
from tests.job.data.prepare_cases import write_texts
from tests.job.data.random_tokens import write_tokens

ORDER = PlainOrder(num_samples=10, seed=1, global_batch=2)
NONE: Any = None
WRONG: Any = "wrong"


def odd(value: object) -> Any:
    """What the types of a call would not let pass."""
    return value


def changed(from_step: int, weights: dict[str, float]) -> Mixture:
    return Mixture([Source("a", weight=1)], changes=[Change(from_step=from_step, weights=weights)])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    folder = tmp_path_factory.mktemp("arguments") / "data"
    write_tokens(folder, [1000], held_out=100)
    return open_data(folder)


TOKENS: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "no path": (lambda _: open_data(NONE), "data", "None.*by its path"),
    "an empty path": (lambda _: open_data(""), "data", "by its path"),
    "a number for a path": (lambda _: open_data(odd(7)), "data", "7.*by its path"),
    "no path of samples": (lambda _: open_samples(odd(123)), "data", "123.*by its path"),
    "an empty path of samples": (lambda _: open_samples(""), "data", "by its path"),
    "a mistyped split": (lambda data: data.num_samples("trian", 4), "split", "did you mean 'train'"),
    "a split that there is not": (lambda data: data.num_tokens("test"), "split", "write one of train, held_out"),
    "a list for a split": (lambda data: data.num_tokens(["train"]), "split", "write one of train"),
    "gathered of a split": (lambda data: data.gather("heldout", np.arange(1), 4), "split", "did you mean 'held_out'"),
    "fractions": (lambda data: data.gather("train", np.array([0.5]), 4), "sample_indices", "float64.*whole numbers"),
    "a table": (lambda data: data.gather("train", np.zeros((2, 2), np.int64), 4), "sample_indices", "in one row"),
    "a text for a length": (lambda data: data.num_samples("train", "4"), "sequence", "a whole number above 0"),
    "no length": (lambda data: data.gather("train", np.arange(1), 0), "sequence", "a whole number above 0"),
    "half a length": (lambda data: data.num_samples("train", 4.5), "sequence", "a whole number above 0"),
    "a path for sources": (lambda _: open_sources(odd("data")), "data", "give a DataSource"),
    "a mistyped packing": (lambda _: open_sources(DataSource(path="x", packing=odd("best-fit"))), "data.packing", "mean"),
    "a mistyped shuffle": (lambda _: open_sources(DataSource(path="x", shuffle=odd("none"))), "data.shuffle", "one of full"),
    "a mistyped policy": (lambda _: BadData(policy=odd("quarantin")), "policy", "did you mean 'quarantine'"),
    "all of it": (lambda _: BadData(policy="quarantine", share_max=1), "share_max", "up to, but not, 1"),
    "sizes of a split": (lambda data: Sources.of(data).sizes(odd("trian"), 4), "split", "did you mean"),
    "fractions of sources": (lambda data: Sources.of(data).gather("train", np.array([0.5]), 4), "numbers", "whole numbers"),
    "a text for a weight": (lambda _: Source("a", weight=odd("0.3")), "weight of a", "'0.3': write a number"),
    "a number for a name": (lambda _: Source(odd(7)), "source", "7: give it a name"),
    "names for sources": (lambda _: Mixture(odd(["a"])), "sources", "such as .Source"),
    "a text for a step": (lambda _: changed(odd("10"), {"a": 1}), "from_step of a change", "'10': write a whole"),
    "a list for weights": (lambda _: changed(10, odd([1])), "weights of a change", "give a mapping"),
    "a text for a temperature": (lambda _: Mixture([Source("a")], temperature=odd("2")), "temperature", "write a number"),
    "order: no seed": (lambda _: PlainOrder(num_samples=9, seed=NONE, global_batch=2), "seed", "write a whole number"),
    "order: a text": (lambda _: PlainOrder(num_samples=9, seed=1, global_batch=odd("2")), "global_batch", "whole number"),
    "order: a word": (lambda _: PlainOrder(num_samples=9, seed=1, global_batch=2, shuffle=WRONG), "shuffle", "InOrder"),
    "order: half a sample": (lambda _: PlainOrder(num_samples=odd(9.5), seed=1, global_batch=2), "samples of data", "0 or more"),
    "a seed for an order": (lambda _: rows_of_rank(odd(3)), "order", "give an order, such as PlainOrder"),
    "a rank outside": (lambda _: rows_of_rank(ORDER, 2, 2), "rank", "0 to 1"),
    "a text for a rank": (lambda _: rows_of_rank(ORDER, odd("0"), 2), "rank", "^rank: '0': write a whole number, 0 or more$"),
    "half a rank": (lambda _: rows_of_rank(ORDER, odd(1.0), 2), "rank", r"^rank: 1\.0: write a whole number, 0 or more$"),
    "a long text for a rank": (lambda _: rows_of_rank(ORDER, odd("0" * 99), 2), "rank", "^rank: 'a str': write"),
    "no world": (lambda _: rows_of_rank(ORDER, 0, 0), "world_size", "above 0"),
    "stream: split": (lambda data: BatchStream(data, odd("trian"), 4, rows_of_rank(ORDER)), "split", "did you mean"),
    "stream: an order": (lambda data: BatchStream(data, "train", 4, odd(ORDER)), "order", "rows_of_rank"),
    "stream: backwards": (lambda data: BatchStream(data, "train", 4, rows_of_rank(ORDER), 5, 4), "stop", "the first step, 5"),
    "stream: half a thread": (lambda data: BatchStream(data, "train", 4, rows_of_rank(ORDER), threads=WRONG), "threads", "above 0"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "field", "message"), TOKENS.values(), ids=TOKENS.keys())
def test_reading(data: TokenData, call: Callable[[TokenData], object], field: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        call(data)
    assert caught.value.field == field


def test_what_numpy_counts_with_is_a_whole_number(data: Any) -> None:
    four = np.int32(4)
    assert data.num_samples("train", four) == data.num_samples("train", 4)
    rows = data.gather("train", [1, 2], 4)
    assert (rows == data.gather("train", np.array([1, 2], dtype=np.uint8), four)).all()
    assert data.gather("train", np.array([]), 4).shape == (0, 5)


MAKING: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "one path": (lambda base: prepare(str(base / "in"), base / "out"), "paths", "give a list of paths, such as"),
    "no path": (lambda base: prepare([NONE], base / "out"), "paths", "by its path"),
    "an empty path": (lambda base: prepare([""], base / "out"), "paths", "by its path"),
    "no out": (lambda base: prepare([base / "in"], NONE), "out", "by its path"),
    "a text for a share": (lambda base: prepare([base / "in"], base / "out", held_out=odd("0.1")), "held_out", "write a number"),
    "half a token": (lambda base: prepare([base / "in"], base / "out", vocab_size=odd(300.5)), "vocab_size", "whole number"),
    "half a process": (lambda base: prepare([base / "in"], base / "out", processes=odd(1.5)), "processes", "whole number"),
    "a text for a limit": (lambda base: prepare([base / "in"], base / "out", min_chars=odd("5")), "min_chars", "0 or more"),
    "a mistyped form": (lambda base: prepare([base / "in"], base / "out", normalize=odd("nfd")), "normalize", "did you mean 'nfc'"),
    "no end": (lambda base: prepare([base / "in"], base / "out", end_of_document=NONE), "end_of_document", "write the token"),
    "one prefix": (
        lambda base: import_megatron(odd("a"), base / "out", ImportAsked(tokenizer=base / "t.json")), "prefixes", "give a list",
    ),
    "a mistyped kind of documents": (
        lambda base: import_tokens(base, base / "out", TokensAsked(column="t", tokenizer=base, documents=odd("end_mark"))),
        "documents", "did you mean 'end_marks'",
    ),
    "an export of a mistyped split": (lambda base: export(base / "data", base / "out", odd("trian")), "split", "did you mean"),
    "no place": (lambda base: push(base / "data", NONE), "place", "by its URL"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "field", "message"), MAKING.values(), ids=MAKING.keys())
def test_making(tmp_path: Path, call: Callable[[Path], object], field: str, message: str) -> None:
    (tmp_path / "in").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=message) as caught:
        call(tmp_path)
    assert caught.value.field == field
    assert sorted(tmp_path.rglob("*")) == before


def test_paths_may_be_texts(tmp_path: Path, tokenizer: Path) -> None:
    write_texts(tmp_path / "in", files=3, lines=9)
    prepare([str(tmp_path / "in")], str(tmp_path / "out"), tokenizer=str(tokenizer))
    assert open_sources(DataSource(path=str(tmp_path / "out"))).names == ("data",)
