"""MDS folders that MosaicML's own library wrote are read, and what is written for it is what it would have written."""

import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.data_asked import ImportMdsAsked
from phalanx.core.errors import Conflict, DataError
from phalanx.job.data.documents import document_lengths
from phalanx.job.data.made import make
from phalanx.job.data.mds.encodings import array_of, ending, file_bytes, fixed_size
from phalanx.job.data.mds.export import export
from phalanx.job.data.mds.read import MdsFolder
from phalanx.job.data.mds.samples import import_samples
from phalanx.job.data.mds.tokens import TokensAsked, _Shape, import_tokens
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.data.tars.open import open_samples
from tests.drawn import examples
from tests.job.data.image_folders import contents
from tests.job.data.random_tokens import write_tokens

WRITTEN = Path(__file__).parent / "mds"
SIZES = [5, 40, 300, 260]


def copied(name: str, to: Path) -> Path:
    shutil.copytree(WRITTEN / name, to / name)
    return to / name


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the index of an MDS folder."""
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


def columns(encoding: str, name: str = "any", raw: str = "raw") -> Callable[[dict[str, Any]], object]:
    """Makes the first column of `mixed` another, and renames its column of bytes."""

    def change(index: dict[str, Any]) -> None:
        for shard in index["shards"]:
            shard["column_encodings"][0], shard["column_names"][0] = encoding, name
            shard["column_names"][shard["column_names"].index("raw")] = raw

    return change


def tokens_of(data: TokenData) -> list[int]:
    """Of the training split but the last one."""
    found: list[int] = data.gather("train", np.arange(data.num_tokens("train") - 1), 1)[:, 0].tolist()
    return found


def test_every_encoding_becomes_a_file_of_its_kind(tmp_path: Path) -> None:
    data = open_samples(import_samples(WRITTEN / "mixed", tmp_path / "data"))
    assert len(data) == 5 and data.key(3) == "000000003"
    for number in range(5):
        fields = data.read(number).fields
        arrays = {name: np.load(io.BytesIO(value), allow_pickle=False) for name, value in fields.items() if name.endswith(".npy")}
        assert arrays["any.npy"].tolist() == [list(range(1, number + 2))]
        assert arrays["any.npy"].dtype == ["u1", "i8", "f8", "f2", "u4"][number]
        assert arrays["ids.npy"].tolist() == list(range(number + 1)) and arrays["ids.npy"].dtype == np.int32
        assert arrays["box.npy"].tolist() == [[number] * 3] * 2 and arrays["grey.npy"].tolist() == [[[number] * 3] * 3] * 2
        values = {name: json.loads(value) for name, value in fields.items() if name.endswith(".json")}
        assert values == {
            "number.json": -number * 10**12, "small.json": number * 50, "weight.json": float(np.float32(number / 3)),
            "half.json": number / 4, "meta.json": {"i": number, "l": [1, None]}, "digits.json": 10**30 + number,
            "real.json": number / 7,
        }  # fmt: skip
        assert (fields["raw.bin"], fields["caption.txt"].decode()) == (bytes([number]) * number, f"żółw {number}")
        assert fields["price.txt"] == f"{number + 1}.10".encode() and fields["photo.png"].startswith(b"\x89PNG")


def test_packed_shards_of_tokens(tmp_path: Path, tokenizer: Path) -> None:
    random = np.random.default_rng(0)
    rows = [random.integers(0, 300, 40 + number).tolist() for number in range(8)]
    asked = TokensAsked(column="tokens", tokenizer=tokenizer, held_out=0)
    data = open_data(import_tokens(WRITTEN / "tokens_zstd", tmp_path / "data", asked), verify=True)
    end = data.end_of_document
    assert [*tokens_of(data), end] == [token for row in rows for token in [*row, end]]
    assert data.manifest.splits["held_out"].documents == 0
    again = open_data(import_tokens(WRITTEN / "tokens_zstd", tmp_path / "again", asked))
    assert again.manifest_hash == data.manifest_hash
    half = TokensAsked(column="tokens", tokenizer=tokenizer, held_out=0.5)
    splits = open_data(import_tokens(WRITTEN / "tokens_zstd", tmp_path / "half", half)).manifest.splits
    assert splits["train"].documents + splits["held_out"].documents == 8 and 1 <= splits["held_out"].documents <= 7


def test_ids_in_plain_bytes_cut_into_rows(tmp_path: Path, tokenizer: Path) -> None:
    asked = TokensAsked(column="tokens", tokenizer=tokenizer, bytes_type="int64", documents="end_marks", held_out=0)
    data = open_data(import_tokens(WRITTEN / "rows_gz", tmp_path / "data", asked), verify=True)
    rows = [[10 * row + 1, 10 * row + 2, 299 if row % 2 else 5, 10 * row + 3] for row in range(6)]
    assert tokens_of(data) == [token for row in rows for token in row] and data.manifest.splits["train"].documents == 1
    with pytest.raises(DataError, match=r"bytes_type.*one of uint16, int32"):
        import_tokens(WRITTEN / "rows_gz", tmp_path / "x", TokensAsked(column="tokens", tokenizer=tokenizer))


def test_rows_of_one_length_are_not_taken_for_documents_without_a_word(tmp_path: Path, prepared_once: Path) -> None:
    export(prepared_once, tmp_path / "rows", sequence=16, size_limit=20_000)
    asked = ImportMdsAsked(folder=tmp_path / "rows", out=tmp_path / "out", tokens="tokens", tokenizer=prepared_once, held_out=0.5)
    message = (
        r"^all [\d,]+ samples have 16 tokens( \(the last one fewer\))?, with \d+ end marks inside .*--documents end_marks joins"
    )
    made = make(asked, lambda *_: None)
    assert re.search(message, made["note"]) and made["parameters"]["documents"] == "samples"
    for documents in ("samples", "end_marks"):
        said = replace(asked, documents=documents, force=True)
        assert make(said, lambda *_: None)["note"] == ""
    export(prepared_once, tmp_path / "whole", size_limit=20_000)
    assert make(replace(asked, folder=tmp_path / "whole", force=True), lambda *_: None)["note"] == ""


@pytest.mark.parametrize(
    ("lengths", "cut"), [([4, 4, 4], True), ([4, 4, 3], True), ([4], False), ([4, 3, 4], False), ([3, 4], False), ([1, 1], False)]
)
def test_what_looks_cut(lengths: list[int], cut: bool) -> None:
    shape = _Shape()
    assert sum(row.size for row in shape.seen([np.zeros(length, dtype=np.int64) for length in lengths], 0)) == sum(lengths)
    assert shape.is_cut is cut
    if cut:
        last = " (the last one fewer)" if lengths[-1] < lengths[0] else ""
        assert shape.sentence().startswith(f"all 3 samples have 4 tokens{last}, with")


@pytest.mark.parametrize(("name", "sequence"), [("documents", None), ("rows", 64)])
def test_what_is_exported_is_what_mosaicml_writes(tmp_path: Path, name: str, sequence: int | None) -> None:
    """Byte for byte, its index too."""
    write_tokens(tmp_path / "data", SIZES)
    export(tmp_path / "data", tmp_path / "mds", sequence=sequence, size_limit=1024)
    assert contents(tmp_path / "mds") == contents(WRITTEN / name)


@pytest.mark.parametrize(("documents", "sequence"), [("samples", None), ("end_marks", 16)])
def test_there_and_back(tmp_path: Path, prepared_once: Path, documents: Any, sequence: int | None) -> None:
    data = open_data(prepared_once)
    export(prepared_once, tmp_path / "mds", sequence=sequence, size_limit=20_000)
    asked = TokensAsked(column="tokens", tokenizer=prepared_once, documents=documents, held_out=0, shard_tokens_max=9_000)
    back = open_data(import_tokens(tmp_path / "mds", tmp_path / "back", asked), verify=True)
    lost = 0 if sequence is None else data.num_tokens("train") % sequence
    kept = tokens_of(data)[: data.num_tokens("train") - lost - 1]
    assert tokens_of(back)[: len(kept)] == kept and len(back.manifest.shards) > 3
    lengths = document_lengths(data, "train")
    assert document_lengths(back, "train")[: len(lengths) - 1].tolist() == lengths[:-1].tolist()


def test_pickles_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column x.*'pkl'.*run code"):
        import_samples(WRITTEN / "pickled", tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda index: index.update(version=3), "another version"),
        (lambda index: index.pop("shards"), "no index of MDS"),
        (lambda index: index.update(shards=[]), "has no samples"),
        (lambda index: index["shards"][1]["raw_data"].update(basename="../shard.00001.mds"), "outside its folder"),
        (lambda index: index["shards"][1]["raw_data"].update(basename="/etc/passwd"), "outside its folder"),
        (lambda index: index["shards"][1]["raw_data"].update(bytes=2**40), "less than 4 GiB"),
        (lambda index: index["shards"][1]["raw_data"].update(bytes=7), "should have 7"),
        (lambda index: index["shards"][1].update(format="csv"), "only mds 2"),
        (lambda index: index["shards"][1].update(samples=1), "does not hold 1 samples"),
        (lambda index: index["shards"][1].update(samples=-1), "less than none"),
        (lambda index: index["shards"][1]["column_names"].reverse(), "other columns"),
        (columns("list[pil]"), "is not read"),
        (columns("ndarray:object"), "no type of an ndarray"),
        (columns("ndarray:int8:0"), "no shape"),
        (columns("bytes", "Raw!", "raw?"), r"becomes the field raw_\.bin"),
    ],
)
def test_an_index_that_cannot_be_true_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    folder = copied("mixed", tmp_path)
    edited(folder, change)
    with pytest.raises(DataError, match=said):
        import_samples(folder, tmp_path / "data")


def test_a_compression_that_is_not_read_names_the_way_out(tmp_path: Path) -> None:
    folder = copied("tokens_zstd", tmp_path)
    edited(folder, lambda index: [shard.update(compression="snappy") for shard in index["shards"]])
    with pytest.raises(DataError, match=r"snappy.*write the folder again with compression zstd"):
        import_samples(folder, tmp_path / "data")
    edited(folder, lambda index: [shard.update(compression="gz") for shard in index["shards"]])
    with pytest.raises(DataError, match=r"shard.00000.mds.zstd.*cannot be unpacked as gz"):
        import_samples(folder, tmp_path / "data")


@pytest.mark.parametrize("name", ["mixed", "tokens_zstd"])
def test_a_flipped_byte_is_found_by_the_hashes(tmp_path: Path, name: str) -> None:
    folder = copied(name, tmp_path)
    shard = sorted(folder.glob("shard.00001*"))[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match=r"shard\.00001"):
        import_samples(folder, tmp_path / "data")
    shard.write_bytes(data[:-1])
    with pytest.raises(DataError, match=r"shard\.00001.*should have"):
        import_samples(folder, tmp_path / "data")
    shard.unlink()
    with pytest.raises(DataError, match=r"shard\.00001.*cannot be read"):
        import_samples(folder, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1085), st.integers(1, 255)), min_size=1, max_size=4))
def test_without_hashes_no_bytes_do_more_than_be_refused(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    folder = copied("mixed", tmp_path_factory.mktemp("flipped"))
    edited(folder, lambda index: [shard["raw_data"].update(hashes={}) for shard in index["shards"]])
    data = bytearray((folder / "shard.00000.mds").read_bytes())
    for at, flip in flips:
        data[at] ^= flip
    (folder / "shard.00000.mds").write_bytes(data)
    try:
        assert len(open_samples(import_samples(folder, folder / "data"))) == 5
    except DataError as error:
        assert "is damaged" in str(error) or "is not what its encoding says" in str(error)


@pytest.mark.parametrize(
    "encoding", ["int", "uint8", "float16", "ndarray", "ndarray:int32", "ndarray:uint16:2,3", "pil", "json", "str", "str_int"]
)
@given(data=st.binary(max_size=40))
@settings(max_examples=examples(40), deadline=None)
def test_no_value_does_more_than_be_refused(encoding: str, data: bytes) -> None:
    size = fixed_size(encoding)
    value = data if size is None else data.ljust(size, b"\0")[:size]
    try:
        made = file_bytes(encoding)(value)
    except ValueError:
        return
    if ending(encoding) == "npy":
        np.load(io.BytesIO(made), allow_pickle=False)
    elif ending(encoding) == "json":
        json.loads(made)


def test_columns_that_are_no_tokens_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    def refused(column: str, said: str, name: str = "mixed") -> None:
        with pytest.raises(DataError, match=said):
            import_tokens(WRITTEN / name, tmp_path / "data", TokensAsked(column=column, tokenizer=tokenizer))

    refused("words", "has only any, box, caption")
    refused("caption", "is of str, which holds no token ids")
    refused("box", r"sample 0.*is uint16\[2, 3\], not one row")
    refused("tokens", "outside the tokenizer's 400", "documents")
    assert array_of("ndarray:uint16:2")(b"\1\0\2\0").tolist() == [1, 2]


def test_an_export_is_made_again_and_replaces_no_other(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", SIZES)
    out = tmp_path / "mds"
    export(tmp_path / "data", out, size_limit=1024)
    was = contents(out)
    (out / "shard.00000.mds").write_bytes(b"damaged")
    export(tmp_path / "data", out, size_limit=1024)
    assert contents(out) == was
    with pytest.raises(Conflict, match="holds MDS of other data, or exported otherwise; give --force"):
        export(tmp_path / "data", out, size_limit=2048)
    (out / "mine.txt").write_text("keep")
    with pytest.raises(Conflict, match=r"mine\.txt"):
        export(tmp_path / "data", out, size_limit=1024)
    assert (out / "mine.txt").read_text() == "keep" and not (tmp_path / ".mds.preparing").exists()


def test_arrays_of_whole_numbers_are_said_to_be_tokens_most_likely(tmp_path: Path) -> None:
    asked = ImportMdsAsked(folder=WRITTEN / "documents", out=tmp_path / "out")
    assert "'tokens' holds arrays of whole numbers; if these are token ids, --tokens tokens" in make(asked, lambda *_: None)["note"]


def test_a_folder_of_splits_names_them(tmp_path: Path) -> None:
    for split in ("val", "train"):
        copied("rows", tmp_path / "all").rename(tmp_path / "all" / split)
    with pytest.raises(DataError, match=rf"holds MDS folders \(train, val\); import each by itself, as {tmp_path}/all/train"):
        MdsFolder(tmp_path / "all")


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [10])
    for field, said in (
        ({"split": "held_out"}, "no whole sample"),
        ({"sequence": 11}, "a smaller --sequence"),
        ({"sequence": 0}, "above 0"),
    ):
        with pytest.raises(DataError, match=said):
            export(tmp_path / "data", tmp_path / "mds", **field)
    with pytest.raises(DataError, match="size_limit"):
        export(tmp_path / "data", tmp_path / "mds", size_limit=10)
    damaged = tmp_path / "data/train-00000.bin"
    damaged.write_bytes(bytes(20))
    with pytest.raises(DataError, match=r"train-00000.bin.*SHA-256"):
        export(tmp_path / "data", tmp_path / "mds")
    assert not (tmp_path / "mds").exists()


def test_an_exported_folder_is_read_by_its_own_reader(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "data", [300, 70_000], "int32")
    folder = MdsFolder(export(tmp_path / "data", tmp_path / "mds"))
    values = [array_of(folder.columns["tokens"])(row["tokens"]) for _, rows in folder.shards() for row in rows]
    assert [len(value) for value in values] == [300, 70_000] and np.array_equal(np.concatenate(values), tokens)


def test_a_packed_shard_that_is_damaged_is_named_without_hashes_too(tmp_path: Path) -> None:
    folder = tmp_path / "mds"
    shutil.copytree(WRITTEN / "rows_gz", folder)
    written = json.loads((folder / "index.json").read_text())
    for file in (written["shards"][0]["zip_data"], written["shards"][0]["raw_data"]):
        file["hashes"] = {}
    (folder / "index.json").write_text(json.dumps(written))
    packed = folder / written["shards"][0]["zip_data"]["basename"]
    data = bytearray(packed.read_bytes())
    data[40:60] = bytes(255 - byte for byte in data[40:60])
    packed.write_bytes(data)
    with pytest.raises(DataError, match="cannot be unpacked as gz"):
        list(MdsFolder(folder).shards())
