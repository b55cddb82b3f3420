"""`phalanx data show`."""

import shutil
import sys
from pathlib import Path

import pytest

from phalanx.core.errors import DataError
from phalanx.job.data.show import TASTE_LINES, summary
from phalanx.job.data.shown import verified
from phalanx.storage.hashes import sha256_file


def test_a_folder_at_a_glance(prepared_once: Path, corpus: Path) -> None:
    shown = summary(prepared_once)
    assert shown.manifest_hash == sha256_file(prepared_once / "manifest.json")
    assert shown.tokens == sum(split.tokens for split in shown.splits.values())
    assert shown.bytes_per_token == pytest.approx(shown.text_bytes / shown.tokens, abs=1e-3)
    assert shown.bytes_per_token > 1.5
    assert shown.checksums_ok
    assert 1 <= len(shown.taste) <= TASTE_LINES
    text = "\n".join(path.read_text() for path in corpus.rglob("*.py"))
    assert all(line in text for line in shown.taste[:-1])


def test_unverified_is_said(prepared_once: Path) -> None:
    assert not summary(prepared_once, verify=False).checksums_ok


def test_without_the_extra_only_the_text_is_missing(prepared_once: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    shown = summary(prepared_once)
    assert shown.taste == ()
    assert "pip install" in shown.note


def test_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        summary(tmp_path)


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
