"""A packed workdir goes over what a job left, which may be anything, and never anywhere else."""

from pathlib import Path

import pytest

from phalanx.core.errors import SpecError
from phalanx.operate.agent import code
from phalanx.storage.workdir import pack


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    folder = tmp_path / "packed"
    (folder / "deep").mkdir(parents=True)
    (folder / "main.py").write_text("new")
    (folder / "deep" / "part.py").write_text("new")
    return pack(folder)


def laid(tmp_path: Path, packed: bytes | None) -> Path:
    work = tmp_path / "jobs" / "a-1" / "work"
    code.lay_out(packed, tmp_path / "fresh", work)
    return work


def test_what_a_script_made_stays_and_the_rest_is_the_snapshots(tmp_path: Path, packed: bytes) -> None:
    work = laid(tmp_path, None)
    (work / "deep").mkdir()
    for name in ("result", "main.py", "deep/cache"):
        (work / name).write_text("old")
    assert laid(tmp_path, packed) == work
    found = {str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()}
    assert found == {"result": "old", "deep/cache": "old", "main.py": "new", "deep/part.py": "new"}


def test_a_file_gives_way_to_a_folder_and_a_folder_to_a_file(tmp_path: Path, packed: bytes) -> None:
    work = laid(tmp_path, None)
    (work / "main.py").mkdir()
    (work / "main.py" / "inner").write_text("old")
    (work / "deep").write_text("old")
    laid(tmp_path, packed)
    assert (work / "main.py").read_text() == (work / "deep" / "part.py").read_text() == "new"


@pytest.mark.parametrize("place", ["work", "work/deep", "work/main.py"])
def test_a_link_that_a_job_left_is_replaced_and_never_followed(tmp_path: Path, packed: bytes, place: str) -> None:
    outside, link = tmp_path / "outside", tmp_path / "jobs" / "a-1" / place
    outside.mkdir()
    (outside / "part.py").write_text("of the machine")
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / "part.py" if place.endswith(".py") else outside)
    work = laid(tmp_path, packed)
    assert not link.is_symlink() and (work / "deep" / "part.py").read_text() == "new"
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("part.py", "of the machine")]


def test_a_damaged_archive_changes_nothing(tmp_path: Path, packed: bytes) -> None:
    work = laid(tmp_path, packed)
    (work / "main.py").write_text("mine")
    with pytest.raises(SpecError):
        code.lay_out(packed[:100], tmp_path / "again", work)
    assert (work / "main.py").read_text() == "mine"
