"""What `phalanx data prepare` says of inputs that are most likely not what was meant."""

import bz2
import gzip
import importlib
import lzma
import random
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.data_asked import PrepareAsked
from phalanx.core.errors import DataError
from phalanx.job.data.prepared import prepared
from tests.job.data.prepare_cases import write_jsonl, write_texts


def done(out: Path, *paths: Path, **asked: Any) -> Any:
    found = PrepareAsked(paths=tuple(map(str, paths)), out=out, processes=1, **asked)
    return prepared(found, lambda *_: None)


def test_records_in_a_file_of_another_name_are_one_document_and_said_to_be(tmp_path: Path, tokenizer: Path) -> None:
    texts = write_texts(tmp_path / "in", files=3, lines=9)
    assert done(tmp_path / "plain", texts, tokenizer=tokenizer)["note"] == ""
    write_jsonl(texts / "rows.json", [{"text": f"line {number}"} for number in range(9)])
    note = done(tmp_path / "one", texts, tokenizer=tokenizer)["note"]
    assert note.startswith("1 file of records (the first is rows.json) is one document, syntax and all; rename to .jsonl")
    (texts / "rows.CSV.gz").write_bytes(gzip.compress(b"text\nabc\n"))
    assert done(tmp_path / "two", texts, tokenizer=tokenizer)["note"].startswith(
        "2 files of records (the first is rows.CSV.gz) are"
    )


def test_a_path_given_twice_is_said_to_be_taken_once(tmp_path: Path, tokenizer: Path) -> None:
    texts = write_texts(tmp_path / "in", files=3, lines=9)
    (texts / "link.txt").symlink_to(texts / "0000.txt")  # within one path, which is nobody's mistake
    found = done(tmp_path / "out", texts, texts, tokenizer=tokenizer)
    assert found["sources"][1]["documents"] == 0
    assert f"4 files of {texts} are among the paths before it and taken once; to read data more often" in found["note"]
    assert done(tmp_path / "once", texts, tokenizer=tokenizer)["note"] == ""


@pytest.mark.parametrize(("packer", "data"), [("bzip2", bz2.compress(b"abc")), ("xz", lzma.compress(b"abc"))])
def test_what_is_packed_otherwise_is_said_to_be(packer: str, data: bytes, tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / f"a.jsonl.{packer}"
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"is packed by {packer}, and only \.gz and \.zst are unpacked"):
        done(tmp_path / "out", path, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": 3}, "holds a number in field 'text', and no text"),
        ({"text": ["a"]}, "holds a list in field 'text'"),
        ({"text": None}, "holds null in field 'text'"),
        (["a"], "is a list, and not an object with a field 'text'"),
        ({}, "has no text in field 'text'; its fields: none"),
    ],
)
def test_what_stands_where_text_should_is_named(row: object, problem: str, tmp_path: Path, tokenizer: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    with pytest.raises(DataError, match=problem):
        done(tmp_path / "out", path, tokenizer=tokenizer)


def test_the_columns_of_text_are_named_beside_one_of_numbers(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "a.parquet"
    table = importlib.import_module("pyarrow").table({"id": [1], "tags": [["a"]], "body": ["x"], "title": ["y"]})
    importlib.import_module("pyarrow.parquet").write_table(table, path)
    for column in ("id", "tags"):
        with pytest.raises(DataError, match=rf"no text in column '{column}'; its columns of text: body, title; choose with"):
            done(tmp_path / "out", path, tokenizer=tokenizer, text_field=column)


def test_no_number_of_good_bytes_is_said_where_none_are_known(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(random.Random(1).randbytes(9000).hex().encode())[:-4000])
    with pytest.raises(DataError, match=r"is damaged or cut off \([^;]*\); fetch or pack it again"):
        done(tmp_path / "out", path, tokenizer=tokenizer)


def test_what_was_left_out_is_said_of_text_that_is_too_little(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/README.md").write_text("Cats and dogs.\n" * 3)
    for number in range(12):
        (tmp_path / f"in/{number}.jpg").write_bytes(b"\xff\xd8\0")
    with pytest.raises(DataError, match=r"only \d+ tokens \(12 binary: not taken\); ask for"):
        done(tmp_path / "out", tmp_path / "in")
