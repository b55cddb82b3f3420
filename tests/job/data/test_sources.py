"""Several prepared folders read as one, in rows as the job asks for them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phalanx.core.errors import DataError
from phalanx.core.training_data import Blocks, DataSource, MixtureSource, WeightChange
from phalanx.job.data.asked import mixture_of, order_of, shuffle_of
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.blocks import BlockShuffle, FullShuffle, InOrder
from phalanx.job.data.cursor import Cursor
from phalanx.job.data.documents import document_lengths
from phalanx.job.data.draws import batch
from phalanx.job.data.open import open_data
from phalanx.job.data.order import batch_indices
from phalanx.job.data.prepare import prepare
from phalanx.job.data.sources import Sources, open_sources
from tests.job.data.prepare_cases import write_texts

SEQUENCE = 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two data sets of one tokenizer, in several shards each, and one of another tokenizer."""
    base = tmp_path_factory.mktemp("sources")
    web, code = (write_texts(base / name, files=9, lines=lines) for name, lines in (("web", 12), ("code", 5)))
    prepare([web], base / "w", vocab_size=300, held_out=0.2, shard_tokens_max=3_000)
    prepare([code], base / "c", tokenizer=base / "w" / "tokenizer.json", held_out=0.2, shard_tokens_max=2_000)
    prepare([code], base / "o", vocab_size=290, held_out=0.2)
    return {name: str(base / name[0]) for name in ("web", "code", "other")}


def asked(folders: dict[str, str], **more: object) -> DataSource:
    sources = {"web": MixtureSource(path=folders["web"], weight=3), "code": MixtureSource(path=folders["code"], weight=1)}
    return replace(DataSource(sources=sources), **more)  # type: ignore[arg-type]


def everything(data: Sources, split: str = "train") -> np.ndarray:
    numbers = np.arange(data.num_samples(split, SEQUENCE), dtype=np.int64)  # type: ignore[arg-type]
    return data.gather(split, numbers, SEQUENCE)  # type: ignore[arg-type]


def test_one_folder_is_read_as_it_always_was(folders: dict[str, str]) -> None:
    data, plain = open_sources(DataSource(path=folders["web"])), open_data(Path(folders["web"]))
    count = plain.num_samples("train", SEQUENCE)
    order = data.order(SEQUENCE, seed=7, global_batch=6)
    for step in (0, 3, count // 6, 5 * count):
        draws = batch(order, step)
        assert draws.sample.tolist() == batch_indices(7, step, 6, count).tolist()
        found = data.gather("train", data.numbers(draws, "train", SEQUENCE), SEQUENCE)
        assert (found == plain.gather("train", draws.sample, SEQUENCE)).all()
    assert data.manifest_hash == plain.manifest_hash


@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_the_samples_that_need_a_damaged_block_are_named(folders: dict[str, str], tmp_path: Path, packing: str) -> None:
    """Of documents that are packed whole, those of the same runs as well."""
    base = Path(folders["web"]).parent
    prepare([base / "web"], tmp_path / "web", tokenizer=base / "w" / "tokenizer.json", held_out=0.2, shard_tokens_max=500)
    data = open_sources(asked({**folders, "web": str(tmp_path / "web")}, packing=packing))
    shard = next(one for one in data.opened["web"].manifest.shards if one.name == "train-00001")
    path = tmp_path / "web" / "train-00001.bin"
    path.write_bytes(b"\1\0" + path.read_bytes()[2:])
    block = Block(data=data.manifests["web"], shard=shard.bin_sha256, block=0)
    touching = data.touching(block, "train", SEQUENCE)
    assert touching["code"] == () and data.touching(replace(block, block=1), "train", SEQUENCE)["web"] in ((), [])
    ((first, stop),) = touching["web"]
    hit = []
    for number in range(data.sizes("train", SEQUENCE)["web"]):
        try:
            data.gather("train", np.array([number]), SEQUENCE)
        except BadBlock as error:
            assert error.block == block
            hit.append(number)
    assert first <= hit[0] and hit[-1] < stop and len(hit) > 3
    if packing == "concatenate":
        assert hit == list(range(first, stop))
    numbers = np.arange(data.num_samples("train", SEQUENCE))
    source, sample = data.drawn(numbers, "train", SEQUENCE)
    web = data.sizes("train", SEQUENCE)["web"]
    assert (source == (numbers >= web)).all() and (sample == np.where(source == 0, numbers, numbers - web)).all()


def test_rows_of_a_mixture_are_those_of_its_sources_with_their_shares(folders: dict[str, str]) -> None:
    data = open_sources(asked(folders))
    plain = {name: open_data(Path(folders[name])) for name in ("web", "code")}
    draws = batch(data.order(SEQUENCE, seed=1, global_batch=40), 2)
    assert np.bincount(draws.source).tolist() == [30, 10]
    found = data.gather("train", data.numbers(draws, "train", SEQUENCE), SEQUENCE)
    for row, (source, sample) in enumerate(zip(draws.source, draws.sample, strict=True)):
        one = plain[data.names[source]].gather("train", np.array([sample]), SEQUENCE)
        assert (found[row] == one[0]).all()
    assert data.manifest_hash not in {one.manifest_hash for one in plain.values()}
    with pytest.raises(IndexError, match=r"^sample [0-9]+ lies outside"):
        data.gather("train", np.array([data.num_samples("train", SEQUENCE)]), SEQUENCE)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_packed_rows_hold_every_token_of_every_document_once_and_tell_documents_apart(folders: dict[str, str], split: str) -> None:
    data = open_sources(asked(folders, packing="best_fit"))
    rows = everything(data, split)
    assert rows.shape[1:] == data.row_shape(SEQUENCE) == (2, SEQUENCE + 1)
    tokens, segments = rows[:, 0], rows[:, 1]
    assert (tokens[segments < 0] == data.first.end_of_document).all()
    pieces = sorted(
        tuple(one[part == number]) for one, part in zip(tokens, segments, strict=True) for number in range(part.max() + 1)
    )
    assert pieces == sorted(expected_pieces(data, split))


def expected_pieces(data: Sources, split: str) -> list[tuple[int, ...]]:
    """Documents, cut into rows where they are longer than one."""
    found: list[tuple[int, ...]] = []
    for one in data.opened.values():
        ends = np.cumsum(document_lengths(one, split))  # type: ignore[arg-type]
        rows = one.gather(split, np.arange(one.num_tokens(split) - 1), 1)  # type: ignore[arg-type]
        flat = [*rows[:, 0].tolist(), int(rows[-1, 1])]
        for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            found += [tuple(flat[at : min(at + SEQUENCE + 1, end)]) for at in range(begin, end, SEQUENCE + 1)]
    return found


def test_documents_are_told_apart_in_rows_that_are_cut_anywhere(folders: dict[str, str]) -> None:
    plain, apart = open_sources(asked(folders)), open_sources(asked(folders, attention="document"))
    rows, with_segments = everything(plain), everything(apart)
    assert (with_segments[:, 0] == rows).all()
    ends = rows[:, :-1] == plain.first.end_of_document
    assert (np.diff(with_segments[:, 1], axis=1) == ends).all(), "a document ends with its mark, and nowhere else"


def test_ranks_agree_on_the_data_and_on_how_it_is_read(folders: dict[str, str]) -> None:
    plain = open_sources(DataSource(path=folders["web"]))
    assert plain.agreed == plain.manifest_hash
    seen = {
        open_sources(one).agreed for one in (asked(folders), asked(folders, packing="best_fit"), asked(folders, temperature=2.0))
    }
    assert len(seen) == 3


def test_sources_of_two_tokenizers_are_refused_by_name(folders: dict[str, str]) -> None:
    sources = {"web": MixtureSource(path=folders["web"]), "other": MixtureSource(path=folders["other"])}
    with pytest.raises(DataError, match=r"tokenizer of other: '290 tokens, .*that of web \(300 tokens, .*--tokenizer"):
        open_sources(DataSource(sources=sources))


def test_a_source_without_one_row_is_named(folders: dict[str, str]) -> None:
    absent = replace(asked(folders), sources={**asked(folders).sources, "code": MixtureSource(path="/absent", weight=1)})
    with pytest.raises(DataError, match=r"data\.sources\.code\.path: '/absent': is not there"):
        open_sources(absent)
    with pytest.raises(DataError, match="train samples of web"):
        open_sources(asked(folders)).order(100_000, seed=0, global_batch=4)


def test_what_is_asked_for_becomes_the_order(folders: dict[str, str]) -> None:
    assert shuffle_of(DataSource(path="d")) == FullShuffle()
    assert shuffle_of(DataSource(path="d", shuffle="in_order")) == InOrder()
    assert shuffle_of(DataSource(path="d", shuffle=Blocks(block_samples=4, window_blocks=2))) == BlockShuffle(4, 2)
    mixture = mixture_of(asked(folders, changes=(WeightChange(from_step=5, weights={"code": 1.0}),)))
    assert [(source.name, source.weight) for source in mixture.sources] == [("web", 3), ("code", 1)]
    assert [(change.from_step, change.weights) for change in mixture.changes] == [(5, {"code": 1.0})]
    epochs = {name: MixtureSource(path=name, epochs=number) for name, number in (("web", 2.0), ("code", 1.0))}
    assert [source.epochs for source in mixture_of(DataSource(sources=epochs)).sources] == [2.0, 1.0]


@pytest.mark.parametrize(
    "other",
    [
        {"packing": "best_fit"},
        {"attention": "document"},
        {"shuffle": "in_order"},
        {"shuffle": Blocks(block_samples=4, window_blocks=2)},
    ],
)
def test_a_run_that_goes_on_with_other_rows_or_another_shuffle_is_refused(
    folders: dict[str, str], other: dict[str, object]
) -> None:
    before, after = open_sources(asked(folders)), open_sources(asked(folders, **other))
    saved = Cursor.after(3, before.order(SEQUENCE, seed=0, global_batch=4), before.manifests)
    assert saved.next_step(before.order(SEQUENCE, seed=0, global_batch=4), before.manifests) == 3
    with pytest.raises(DataError, match="order of the data"):
        saved.next_step(after.order(SEQUENCE, seed=0, global_batch=4), after.manifests)


def test_a_plain_order_is_refused_without_its_only_source() -> None:
    with pytest.raises(DataError, match="samples of data"):
        order_of(DataSource(path="d"), {"data": 0}, {"data": ""}, seed=0, global_batch=1)
