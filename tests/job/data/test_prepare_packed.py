"""Compressed texts: the same documents, in little memory, and never half of a file or a bomb."""

import gzip
import importlib
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data import encoding, texts, unpacked
from phalanx.job.data.file_pieces import File, Piece, cut
from phalanx.job.data.looking import Batch, look
from phalanx.job.data.prepare import prepare
from phalanx.job.data.texts import DIGEST_BYTES, Reading
from tests.drawn import examples
from tests.job.data.prepare_cases import contents, texts_of, write_jsonl

Pack = Callable[[bytes], bytes]


def zstd(data: bytes) -> bytes:
    arrow: Any = importlib.import_module("pyarrow")
    packed: bytes = arrow.compress(data, codec="zstd", asbytes=True)
    return packed


PACKS: dict[str, Pack] = {".gz": gzip.compress, ".zst": zstd}
ROWS = [f"row {row} 🐍 says é and {row * row} more words " * (row % 40 + 1) for row in range(400)]


@pytest.fixture(params=list(PACKS))
def ending(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read in many parts, and its tokens go through a file. This process alone reads and encodes."""
    monkeypatch.setattr(texts, "PART_BYTES", 10_000)
    monkeypatch.setattr(encoding, "ENCODED_BYTES", 20_000)
    monkeypatch.setattr(encoding, "SPOOLED_BYTES", 5_000)


def packed_rows(folder: Path, ending: str) -> Path:
    plain = write_jsonl(folder / "rows.jsonl", ({"text": text} for text in ROWS))
    path = plain.with_name(f"rows.jsonl{ending}")
    half = len(plain.read_bytes()) // 2
    path.write_bytes(b"".join(PACKS[ending](part) for part in (plain.read_bytes()[:half], plain.read_bytes()[half:])))
    plain.unlink()
    return path


def pieces_of(path: Path) -> list[Piece]:
    found = cut(File(path.name, str(path), path.stat().st_size))
    assert not isinstance(found, str)
    return found


def test_packed_lines_and_texts_are_the_documents_that_they_pack(ending: str, tokenizer: Path, tmp_path: Path) -> None:
    packed_rows(tmp_path / "in", ending)
    (tmp_path / "in" / f"table.csv{ending}").write_bytes(PACKS[ending]("name,value\r\né,1\r\n".encode()))
    (tmp_path / "in" / f"nothing.txt{ending}").write_bytes(PACKS[ending](b""))
    (tmp_path / "in" / f"rows.parquet{ending}").write_bytes(PACKS[ending](b"PAR1"))
    manifest = prepare([tmp_path / "in"], tmp_path / "out", tokenizer=tokenizer)
    found = [text for split in texts_of(tmp_path / "out").values() for text in split]
    assert sorted(found) == sorted([*ROWS, "name,value\r\né,1\r\n"])
    (source,) = manifest.sources
    assert (source.skipped_empty, source.skipped_unreadable) == (1, 1)


def test_neither_parts_nor_processes_nor_a_file_of_tokens_change_a_byte(tokenizer: Path, tmp_path: Path, small_parts: None) -> None:
    for ending in PACKS:
        packed_rows(tmp_path / "in", ending)
    for processes in (1, 2):  # the second with the usual sizes of parts
        prepare([tmp_path / "in"], tmp_path / str(processes), tokenizer=tokenizer, shard_tokens_max=20_000, processes=processes)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_large_packed_file_takes_little_memory(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.jsonl{ending}"
    line = json.dumps({"text": "".join(f"{number * 7919} " for number in range(2000))}).encode() + b"\n"
    path.write_bytes(PACKS[ending](line * 2500))
    size = len(line) * 2500
    assert path.stat().st_size * 20 < size
    tracemalloc.start()
    try:
        looked = look(Batch(pieces_of(path), Reading()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert looked.documents.tolist() == [2500]
    assert peak < size / 4


@pytest.mark.parametrize("damage", ["cut off", "no end", "other bytes", "words after"])
def test_a_damaged_file_is_one_error_that_says_how_far_it_is_good(
    ending: str, damage: str, tokenizer: Path, tmp_path: Path
) -> None:
    path = packed_rows(tmp_path / "in", ending)
    data = path.read_bytes()
    broken = {
        "cut off": data[: len(data) * 2 // 3],
        "no end": data[:-1],
        "other bytes": b"these are no packed bytes\n" * 9,
        "words after": data + b"some words",
    }
    path.write_bytes(broken[damage])
    with pytest.raises(
        DataError, match=r"is damaged or cut off \(.*\); (at least its first [1-9]\d* bytes .*good; )?fetch"
    ) as caught:
        prepare([tmp_path / "in"], tmp_path / "out", tokenizer=tokenizer)
    assert (caught.value.field, caught.value.value) == ("paths", str(path))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_bomb_ends_with_one_error_long_before_it_fills_anything(
    ending: str, name: str, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "FREE_BYTES", 2**20)
    path = tmp_path / f"{name}{ending}"
    path.write_bytes(PACKS[ending](b"x" * (50 * 2**20)))
    with pytest.raises(DataError, match="over 200 times its size") as caught:
        prepare([path], tmp_path / "out", tokenizer=tokenizer)
    assert caught.value.value == str(path)


def test_one_line_or_text_that_is_too_long_is_refused(
    ending: str, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "DOCUMENT_BYTES_MAX", 3 * 2**20)
    for name in ("a.jsonl", "a.txt"):
        path = tmp_path / f"{name}{ending}"
        path.write_bytes(PACKS[ending](b"x" * (5 * 2**20)))
        with pytest.raises(DataError, match="longer than"):
            prepare([path], tmp_path / "out", tokenizer=tokenizer)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.text('ab\n"é🐍', max_size=12), max_size=12), st.integers(1, 50), st.booleans())
def test_borders_of_what_is_unpacked_neither_lose_nor_repeat_a_line(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], chunk: int, open_end: bool
) -> None:
    path = write_jsonl(tmp_path_factory.getbasetemp() / "packed.jsonl", ({"text": text} for text in rows))
    data = path.read_bytes().removesuffix(b"\n") if open_end else path.read_bytes()
    packed = path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacked, "_CHUNK_BYTES", chunk)
        patch.setattr(texts, "PART_BYTES", chunk)
        found = [document.decode() for piece in pieces_of(packed) for document in texts.read(piece, Reading()).documents]
    assert found == [text for text in rows if text]


def test_a_file_that_is_gone_moves_no_other_files_digest(tmp_path: Path) -> None:
    names = ["a.txt", "b.txt", "c.txt"]
    for name in names:
        (tmp_path / name).write_text(name)
    pieces = [piece for name in names for piece in pieces_of(tmp_path / name)]
    (tmp_path / "b.txt").unlink()
    looked = look(Batch(pieces, Reading()))
    assert looked.documents.tolist() == [1, 0, 1]
    assert looked.piece_digests[2 * DIGEST_BYTES :] == texts.digest(b"c.txt")
    assert [(number, dict(why)) for number, why, _ in looked.skipped] == [(1, {"unreadable": 1})]


def test_the_processes_of_a_crew_import_little() -> None:
    """Each pays for it before it begins."""
    words = "import sys, phalanx.job.data.crew_member, phalanx.job.data.encoding, phalanx.job.data.looking; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout.split()
    assert {"pydantic", "pyarrow", "obstore", "tokenizers", "gigatoken", "torch"}.isdisjoint(loaded)
