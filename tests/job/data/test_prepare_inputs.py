"""JSONL, Parquet and patterns; lines and rows that are no text; cleaning and exact duplicates."""

import importlib
import random
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError, SetupError
from phalanx.job.data import file_pieces
from phalanx.job.data.file_pieces import File, Piece, cut
from phalanx.job.data.prepare import prepare
from phalanx.job.data.show import summary
from phalanx.job.data.texts import Reading, parts, read
from tests.drawn import examples
from tests.job.data.prepare_cases import contents, texts_of, write_jsonl, write_texts

ROWS = [f"row {number} says é and {number * number} more words" for number in range(60)]


def write_parquet(path: Path, values: Sequence[object], name: str = "text", rows_each: int = 100) -> Path:
    arrow: Any = importlib.import_module("pyarrow")
    importlib.import_module("pyarrow.parquet").write_table(arrow.table({name: values}), path, row_group_size=rows_each)
    return path


def made(paths: Sequence[object], out: Path, tokenizer: Path, **more: object) -> list[str]:
    """The documents of both splits, sorted."""
    prepare([str(path) for path in paths], out, tokenizer=tokenizer, force=True, **more)  # type: ignore[arg-type]  # a test's own table
    return sorted(text for texts in texts_of(out).values() for text in texts)


def test_jsonl_and_parquet_hold_a_document_a_line_or_row(tokenizer: Path, tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "a.jsonl", ({"body": text, "id": 3} for text in ROWS))
    for path in (lines, write_parquet(tmp_path / "b.parquet", ROWS, "body", rows_each=25)):
        assert made([path], tmp_path / "out", tokenizer, text_field="body") == sorted(ROWS)


def test_what_is_no_document_is_counted_and_shown(tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    good = "\n".join(f'{{"text": "{text}"}}' for text in ROWS).encode()
    odd = [
        b"{broken",
        b"\xff\xfe{}",
        b"[1, 2]",
        b'{"other": "x"}',
        b'{"text": 7}',
        b'{"text": ""}',
        b'{"text": "\\ud800"}',
        b"[" * 10**5,
    ]
    (folder / "some.jsonl").write_bytes(b"\xef\xbb\xbf" + good + b"\r\n\r\n \n" + b"\n".join(odd))
    (folder / "junk.jsonl").write_bytes(b"\0\x01\x02\n\xff\n")
    (folder / "junk.parquet").write_bytes(b"PAR1 not really")
    (folder / "blob.txt").write_bytes(b"\0")
    write_parquet(folder / "rows.parquet", [None, "a row of Parquet"])
    write_parquet(folder / "numbers.parquet", [1, 2])
    write_parquet(folder / "bytes.parquet", [b"bytes of text", b"\xff"])
    assert made([folder], tmp_path / "out", tokenizer) == sorted([*ROWS, "a row of Parquet", "bytes of text"])
    (source,) = summary(tmp_path / "out").sources
    counts = {
        name: getattr(source, f"skipped_{name}") for name in ("binary", "not_utf8", "unreadable", "empty", "not_json", "no_text")
    }
    assert counts == {"binary": 1, "not_utf8": 4, "unreadable": 1, "empty": 1, "not_json": 3, "no_text": 5}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"body": "x", "id": 1}\n', "no text in field 'text'; its fields: body, id; choose with --text-field"),
        ("a.jsonl", b'{"text": \n', "byte 0 of a.jsonl is not JSON"),
        ("a.jsonl", b"\xff\n", "is not UTF-8"),
        ("a.jsonl", b"", "is empty"),
        ("a.parquet", b"junk", "is no Parquet, or damaged"),
        ("a.txt", b"ab\0", "is binary .byte 2 is NUL.; name text files"),
        ("a.txt", b"abc\xe9", "is not UTF-8 .byte 3 is 0xe9.; convert it"),
    ],
)
def test_a_file_that_was_named_and_holds_no_document_is_refused(
    tokenizer: Path, tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        prepare([tmp_path / name], tmp_path / "out", tokenizer=tokenizer)
    assert (caught.value.field, caught.value.value) == ("paths", str(tmp_path / name))


def test_a_parquet_file_without_the_column_says_which_it_has(tokenizer: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ROWS, "body")
    with pytest.raises(DataError, match="has no column 'text'; its columns: body"):
        prepare([tmp_path / "a.parquet"], tmp_path / "out", tokenizer=tokenizer)


def write_often(path: Path, value: str, times: int, **options: Any) -> None:
    """A row group in which a dictionary has one text, and every row names it."""
    arrow: Any = importlib.import_module("pyarrow")
    often = arrow.DictionaryArray.from_arrays(arrow.array([0] * times, arrow.int32()), arrow.array([value]))
    importlib.import_module("pyarrow.parquet").write_table(arrow.table({"text": often}), path, **options)


@pytest.mark.parametrize(
    ("mib", "times", "options"),
    [(1, 600, {}), (40, 20, {"compression": "zstd"}), (40, 5, {"compression": "zstd", "use_dictionary": False})],
    ids=["many rows of a text", "rows of a huge text", "pages that pack well"],
)
def test_a_parquet_bomb_is_refused_before_it_is_in_memory(tmp_path: Path, mib: int, times: int, options: dict[str, Any]) -> None:
    arrow: Any = importlib.import_module("pyarrow")
    path = tmp_path / "a.parquet"
    write_often(path, "x" * (mib * 2**20), times, **options)
    pieces = cut(File("a.parquet", str(path), path.stat().st_size))
    assert isinstance(pieces, list) and path.stat().st_size < 200_000
    before, pool = arrow.default_memory_pool(), arrow.system_memory_pool()  # which nobody has used for more
    arrow.set_memory_pool(pool)
    try:
        with pytest.raises(DataError, match="row group 0 grows to over 200 times its size; if it is no bomb") as caught:
            list(parts(pieces[0], Reading()))
    finally:
        arrow.set_memory_pool(before)
    assert (caught.value.field, caught.value.value) == ("paths", "a.parquet")
    assert pool.max_memory() < 200 * 2**20


def test_what_a_row_group_says_over_and_over_is_read_in_parts(tmp_path: Path) -> None:
    """In one, memory would have to hold all of it."""
    path = tmp_path / "a.parquet"
    write_often(path, "word " * 2000, 1000)
    pieces = cut(File("a.parquet", str(path), path.stat().st_size))
    assert isinstance(pieces, list)
    found = list(parts(pieces[0], Reading()))
    assert len(found) > 5 and [bool(one.digest) for one in found] == [False] * (len(found) - 1) + [True]
    assert [name for one in found for name in one.names] == [f"a.parquet#{row}" for row in range(1000)]
    assert read(pieces[0], Reading()).documents == [b"word " * 2000] * 1000


def test_damage_behind_rows_that_were_taken_is_no_reason_to_leave_out_the_rest(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [random.Random(row).randbytes(1000).hex() for row in range(3000)], rows_each=3000)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2 : -10_000] = bytes(len(whole) - 10_000 - len(whole) // 2)
    path.write_bytes(whole)
    pieces = cut(File("a.parquet", str(path), len(whole)))
    assert isinstance(pieces, list)
    with pytest.raises(DataError, match=r"is damaged in row group 0 .*its rows before row \d+ are good; fetch it"):
        list(parts(pieces[0], Reading()))


def test_parquet_without_its_library_says_what_to_install(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SetupError, match="pip install pyarrow"):
        prepare([tmp_path / "a.parquet"], tmp_path / "out", tokenizer=tokenizer)


def test_patterns_name_files_and_say_nothing_of_this_machine(tokenizer: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "web" / "one", files=3, lines=5)
    write_texts(tmp_path / "web" / "two", files=3, lines=5)
    (tmp_path / "web" / "two" / "notes.md").write_text("not taken")
    (tmp_path / "web" / ".hidden").mkdir()
    (tmp_path / "web" / ".hidden" / "x.txt").write_text("not taken")
    manifest = prepare([tmp_path / "web" / "**" / "*.txt"], tmp_path / "out", tokenizer=tokenizer)
    (source,) = manifest.sources
    assert (source.name, source.documents) == ("**/*.txt", 6)
    assert str(tmp_path).encode() not in contents(tmp_path / "out")["manifest.json"]
    with pytest.raises(DataError, match="matches no file"):
        prepare([tmp_path / "web" / "*.csv"], tmp_path / "out", tokenizer=tokenizer)
    (tmp_path / "a[b].txt").write_text("".join(ROWS))
    named = prepare([tmp_path / "a[b].txt"], tmp_path / "out", tokenizer=tokenizer, force=True)
    assert named.sources[0].name == "a[b].txt", "it exists"


def test_the_first_of_equal_texts_stays(tokenizer: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "a", files=5, lines=9)
    write_texts(tmp_path / "b", files=8, lines=9)
    rows = write_jsonl(tmp_path / "c.jsonl", ({"text": text} for text in [*ROWS, *ROWS[:7]]))
    arguments = [tmp_path / "a", tmp_path / "b", rows]
    found = made(arguments, tmp_path / "out", tokenizer, dedup=True, processes=2)
    assert found == sorted(set(found))
    shown = summary(tmp_path / "out")
    assert [(source.documents, source.skipped_duplicate) for source in shown.sources] == [(5, 0), (3, 5), (60, 7)]
    assert shown.parameters["dedup"] == "exact"
    assert len(made(arguments, tmp_path / "out", tokenizer)) == 5 + 8 + 67


def test_texts_are_brought_to_one_form_and_short_ones_left_out(tokenizer: Path, tmp_path: Path) -> None:
    rows = ["cafe\u0301 and more", "caf\u00e9 and more", "e\u0301e\u0301", "plain enough"]
    path = write_jsonl(tmp_path / "a.jsonl", ({"text": text} for text in rows))
    found = made([path], tmp_path / "out", tokenizer, normalize="nfc", min_chars=3, dedup=True)
    assert found == sorted(["caf\u00e9 and more", "plain enough"])
    shown = summary(tmp_path / "out")
    assert (shown.sources[0].skipped_short, shown.sources[0].skipped_duplicate) == (1, 1)
    assert shown.parameters["unicode"] == unicodedata.unidata_version
    assert (shown.parameters["normalize"], shown.parameters["min_chars"]) == ("nfc", 3)


def test_one_giant_document_is_refused_before_it_is_read(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "giant.txt").open("wb") as file:
        file.truncate(file_pieces.DOCUMENT_BYTES_MAX + 1)
    with pytest.raises(DataError, match="split it into files, or JSONL lines"):
        prepare([tmp_path / "giant.txt"], tmp_path / "out", tokenizer=tokenizer)


def test_one_document_longer_than_many_pieces_is_one_document(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_pieces, "PIECE_BYTES", 1000)
    long = "word and word é " * 5000
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "first"}, {"text": long}, {"text": "last one"}])
    assert made([path], tmp_path / "out", tokenizer, processes=2) == sorted(["first", long, "last one"])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.text('ab\n"é🐍\\', max_size=12), max_size=12), st.lists(st.integers(0, 400), max_size=8), st.booleans())
def test_borders_of_pieces_neither_lose_nor_repeat_a_line(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], borders: list[int], open_end: bool
) -> None:
    path = write_jsonl(tmp_path_factory.getbasetemp() / "borders.jsonl", ({"text": text} for text in texts))
    if open_end:
        path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    size = path.stat().st_size
    ends = [*sorted(border for border in borders if border < size), size]
    cuts = [Piece(str(path), "n", "jsonl", start, end, 0) for start, end in zip([0, *ends], ends, strict=False)]
    found = [document.decode() for piece in cuts for document in read(piece, Reading()).documents]
    assert found == [text for text in texts if text]


def test_a_file_of_the_kernel_is_none_that_can_be_read(tmp_path: Path) -> None:
    """Its size is said to be 0."""
    for path in ("/proc/self/mem", "/proc/self/status"):
        with pytest.raises(DataError, match="is made by the kernel while it is read; name a file"):
            prepare([path], tmp_path / "data", vocab_size=300)
