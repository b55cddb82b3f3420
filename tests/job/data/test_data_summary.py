"""`phalanx data show`."""

import shutil
import sys
from pathlib import Path

import pytest

from phalanx.core.errors import DataError
from phalanx.job.data.show import SAMPLES, summary
from phalanx.job.data.shown import shown_unread, verified
from phalanx.storage.hashes import sha256_file
from tests.job.data.random_tokens import write_tokens


def test_a_folder_at_a_glance(prepared_once: Path, corpus: Path) -> None:
    shown = summary(prepared_once)
    assert shown.manifest_hash == sha256_file(prepared_once / "manifest.json")
    assert shown.tokens == sum(split.tokens for split in shown.splits.values())
    assert shown.bytes_per_token == pytest.approx(shown.text_bytes / shown.tokens, abs=1e-3)
    assert shown.bytes_per_token > 1.5
    assert shown.checksums_ok
    assert [one.split for one in shown.samples] == ["held_out"] * SAMPLES + ["train"] * SAMPLES
    text = "\n".join(path.read_text() for path in corpus.rglob("*.py"))
    for one in shown.samples:
        pieces = [piece for piece in one.text.split("<|endoftext|>") if piece]
        assert pieces and all(piece.strip("\ufffd") in text for piece in pieces)


def test_lengths_of_documents_are_counted_by_powers_of_two(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [1, 2, 3, 3, 4, 64], held_out=5)
    found = summary(tmp_path / "data", verify=False).lengths
    assert found is not None
    assert (found.counted, found.least, found.median, found.most) == (6, 1, 3, 64)
    assert [(one.least, one.most, one.documents) for one in found.bins if one.documents] == [
        (1, 1, 1), (2, 3, 3), (4, 7, 1), (64, 127, 1),
    ]  # fmt: skip
    assert [one.documents for one in found.bins] == [1, 3, 1, 0, 0, 0, 1], "with those between that have none"


def test_nothing_is_hashed_that_is_not_shown(prepared: Path) -> None:
    last = max(prepared.glob("train-*.bin"))
    last.write_bytes(bytes(last.stat().st_size))
    assert "checksums_ok" not in shown_unread(prepared)
    assert verified(prepared)["checksums_ok"] is False


def test_unverified_is_said(prepared_once: Path) -> None:
    assert not summary(prepared_once, verify=False).checksums_ok


def test_without_the_extra_only_the_text_is_missing(prepared_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    shown = summary(prepared_once)
    assert shown.samples == ()
    assert "pip install" in shown.note


def test_a_tokenizer_that_is_none_costs_the_text_alone(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [5])
    shown = summary(tmp_path / "data", verify=False)
    assert shown.samples == () and "tokenizer.json" in shown.note and shown.lengths is not None


def test_something_else_is_refused(tmp_path: Path, prepared_once: Path) -> None:
    with pytest.raises(DataError, match="is a file, not a prepared folder; name the folder"):
        summary(prepared_once / "manifest.json")
    with pytest.raises(DataError):
        summary(tmp_path)
    with pytest.raises(DataError, match="by its path"):
        shown_unread("")


def test_each_damaged_file_is_named_also_where_the_folder_does_not_open(prepared_once: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(prepared_once, folder)
    assert verified(folder)["checksums_ok"] is True
    index, tokens = sorted(folder.glob("train-*.idx"))[0], sorted(folder.glob("train-*.bin"))[0]
    index.write_bytes(bytes([index.read_bytes()[0] ^ 1]) + index.read_bytes()[1:])
    found = verified(folder)
    assert (found["checksums_ok"], [one["file"] for one in found["damaged"]]) == (False, [index.name])
    assert found["says"] == found["damaged"][0]["problem"] and "is damaged" in found["says"]
    tokens.unlink()
    found = verified(folder)
    assert {one["file"] for one in found["damaged"]} == {index.name, tokens.name} and "and 1 more" in found["says"]
    with pytest.raises(DataError, match="is not there"):
        verified(tmp_path / "mistyped")
