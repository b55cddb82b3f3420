"""What is said of a path where prepared data should be: what lies there, and what to do."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.core.unprepared import JOURNAL, MANIFEST, being_made, unprepared


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def link(path: Path) -> None:
    path.symlink_to("elsewhere")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def tars_and_a_loop(path: Path) -> None:
    files(path, "a.tar")
    loop(path / "loop")


def killed(path: Path) -> None:
    files(being_made(path), "tokenizer.json", JOURNAL)


MADE: dict[str, tuple[Callable[[Path], object], str, bool]] = {
    "nothing": (lambda path: None, "is not there: {above} has no data; name a folder made by", False),
    "a link to nothing": (link, "is a link to elsewhere, which is not there", False),
    "a loop of links": (loop, "levels of symbolic links); its links lead in a circle: mend them, or name the folder itself", False),
    "tars beside a loop of links": (tars_and_a_loop, "holds tar files (a.tar) without an index", True),
    "a file": (Path.touch, "is a file, not a folder; if it is text, run `phalanx data prepare {path} --out DIR`", True),
    "an empty folder": (Path.mkdir, "is empty: name a folder made by `phalanx data prepare`", True),
    "text": (lambda path: files(path, "a.txt", "b.jsonl"), "but a.txt, b.jsonl; if that is text, run `phalanx data prepare", True),
    "much text": (lambda path: files(path, *"abcde"), "but a, b, c and more; if that is text", True),
    "folders of text": (lambda path: files(path, "en/a.txt", "de/b.txt"), "but de/, en/; if that is text", True),
    "a killed prepare": (killed, "is not finished: a command that makes it is at work, or was killed ({beside} is", True),
    "what a killed prepare left": (lambda path: files(path, "tokenizer.json", JOURNAL), "is not finished", True),
    "a Megatron prefix": (
        lambda path: files(path.parent, "data.bin", "data.idx"),
        "is Megatron's indexed data, a pair .bin and .idx, and not a folder; run `phalanx data import-megatron {path} --tok",
        True,
    ),
    "Megatron pairs": (
        lambda path: files(path, "web.bin", "web.idx", "vocab.json"),
        "holds Megatron's indexed data (web); run `phalanx data import-megatron {path}/web --tokenizer",
        True,
    ),
    "half of a copy": (
        lambda path: files(path, "tokenizer.json", "train-00000.bin", "train-00000.idx", "train-00000.xxh3"),
        "holds shards of a prepared folder without their manifest.json, so it is not all there; copy or make it again",
        True,
    ),
    "MDS": (
        lambda path: files(path, "index.json", "shard.00000.mds"),
        "holds MDS shards (MosaicML Streaming), which are not read as they are; run `phalanx data import-mds {path} ",
        True,
    ),
    "packed MDS": (lambda path: files(path, "index.json", "shard.00000.mds.zstd"), "run `phalanx data import-mds {path} ", True),
    "MDS splits": (
        lambda path: files(path, "train/index.json", "val/index.json"),
        "holds MDS folders (train, val), which are not read as they are; run `phalanx data import-mds {path}/train ",
        True,
    ),
    "tars": (
        lambda path: files(path, "a.tar", "b.tar"),
        "tar files (a.tar, b.tar) without an index; run `phalanx data index",
        True,
    ),
    "images": (lambda path: files(path, "cat/1.JPG"), "images that were not packed; run `phalanx data pack {path} --out", True),
    "prepared folders": (
        lambda path: files(path, f"web/{MANIFEST}", f"code/{MANIFEST}"),
        "holds prepared folders (code, web) and is none itself; name one of them, or several in data.sources",
        True,
    ),
}


@pytest.mark.parametrize(("make", "said", "seen"), MADE.values(), ids=MADE.keys())
def test_each_mistake_has_its_own_words(tmp_path: Path, make: Callable[[Path], object], said: str, seen: bool) -> None:
    path = tmp_path / "data"
    make(path)
    found = unprepared(path)
    assert found is not None
    assert said.format(path=path, above=tmp_path, beside=being_made(path)) in found.fix
    assert found.seen is seen


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("whole/" + MANIFEST, "is a file of a prepared folder; name the folder, {folder}/whole"),
        ("whole/train-00000.bin", "is a file of a prepared folder; name the folder, {folder}/whole"),
        ("a.bin", "run `phalanx data import-megatron {folder}/a --tokenizer"),
        ("a.tar", "is a tar file, not a folder; run `phalanx data index {folder}`"),
        ("a.tar/deeper/still", "is not there: {folder}/a.tar is a file"),
    ],
)
def test_a_file_of_a_data_set_is_told_from_its_folder(tmp_path: Path, name: str, said: str) -> None:
    files(tmp_path, "a.bin", "a.idx", "a.tar", f"whole/{MANIFEST}", "whole/train-00000.bin", "whole/train-00000.idx")
    found = unprepared(tmp_path / name)
    assert found is not None and said.format(folder=tmp_path) in found.fix


def test_a_folder_with_a_manifest_is_none_of_these(tmp_path: Path) -> None:
    files(tmp_path, MANIFEST, JOURNAL, "a.tar")
    assert unprepared(tmp_path) is None


@pytest.mark.parametrize("length", [244, 245, 246, 255, 256])
@pytest.mark.parametrize("above", ["", "a.tar/"])
def test_a_name_that_is_too_long_to_be_there(tmp_path: Path, length: int, above: str) -> None:
    """From 245 on what is being made beside it could have no name either."""
    files(tmp_path, "a.tar")
    found = unprepared(tmp_path / f"{above}{'x' * length}")
    is_short = above or length < 245
    said = "is not there" if is_short else "cannot be read (File name too long); name a folder with a shorter name"
    assert found is not None and found.fix.startswith(said)


def test_a_disk_that_fails_is_no_question_of_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "stat", fail)
    found = unprepared(tmp_path)
    assert found is not None and found.fix.startswith("cannot be read (Input/output error); its disk fails: mend that")


def test_what_this_user_may_not_read_may_be_good_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes from the system's call, as root may read everything."""
    (tmp_path / "data").mkdir()
    denied = PermissionError(13, "Permission denied")

    def refuse(*_: object, **__: object) -> None:
        raise denied

    for owner, call in ((Path, "stat"), (os, "scandir")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, call, refuse)
            found = unprepared(tmp_path / "data")
        assert found is not None and not found.seen
        assert found.fix.startswith("cannot be read (Permission denied); give this user the right")
