"""Where a home's blobs are: chosen once, remembered, moved only on purpose, and never shared with another home."""

import resource
import shutil
from pathlib import Path

import pytest

from phalanx.core.errors import Conflict, NotFound, SetupError, StoreUnavailable
from phalanx.operate.control.blob_home import FILE, OWNER, Remembered, check_change, choice, open_blobs, remembered
from phalanx.operate.home import open_home
from phalanx.storage.objects import open_store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    open_home(tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    return (tmp_path / "elsewhere").as_uri()


def test_without_a_choice_they_lie_in_the_home_which_may_be_moved(home: Path, tmp_path: Path) -> None:
    sha256 = open_blobs(home).put(b"hello")
    assert not (home / FILE).exists()
    home.rename(tmp_path / "moved")
    assert open_blobs(tmp_path / "moved").get(sha256) == b"hello"


def test_a_choice_is_remembered_and_what_was_there_is_copied(home: Path, elsewhere: str) -> None:
    before = open_blobs(home).put(b"before")
    moved = open_blobs(home, elsewhere)
    after = moved.put(b"after")
    again = open_blobs(home)
    assert again.url == elsewhere
    assert (again.get(before), again.get(after)) == (b"before", b"after")
    assert remembered(home).url == elsewhere
    assert (home / FILE).stat().st_mode & 0o077 == 0


def test_the_way_back_is_the_same(home: Path, elsewhere: str) -> None:
    sha256 = open_blobs(home, elsewhere).put(b"hello")
    back = open_blobs(home, (home / "blobs").as_uri())
    assert back.get(sha256) == b"hello"
    assert remembered(home).url == ""
    assert open_blobs(home).url == (home / "blobs").as_uri()
    assert open_blobs(home, elsewhere).get(sha256) == b"hello"  # its own id is known there


def test_a_damaged_blob_stays_behind_and_stops_nothing(home: Path, elsewhere: str) -> None:
    blobs = open_blobs(home)
    good, bad = blobs.put(b"good"), blobs.put(b"bad")
    (home / "blobs" / bad[:2] / bad).write_bytes(b"bat")
    moved = open_blobs(home, elsewhere)
    assert moved.get(good) == b"good"
    with pytest.raises(NotFound):
        moved.get(bad)


def test_a_store_of_another_home_is_refused(home: Path, elsewhere: str, tmp_path: Path) -> None:
    open_blobs(home, elsewhere)
    open_home(tmp_path / "other")
    for look in (lambda: check_change(tmp_path / "other", elsewhere, False), lambda: open_blobs(tmp_path / "other", elsewhere)):
        with pytest.raises(SetupError, match="belongs to another home"):
            look()
    assert not (tmp_path / "other" / FILE).exists()


def test_a_store_that_became_another_homes_is_seen_at_the_next_start(home: Path, elsewhere: str) -> None:
    open_blobs(home, elsewhere)
    open_store(elsewhere).put(OWNER, b'{"home": "somebody"}')
    with pytest.raises(SetupError, match="belongs to another home"):
        open_blobs(home)
    open_store(elsewhere).put(OWNER, b"torn")
    with pytest.raises(SetupError, match="damaged"):
        open_blobs(home)


def test_old_blobs_that_cannot_be_reached_refuse_the_change(home: Path, elsewhere: str, tmp_path: Path) -> None:
    open_blobs(home, elsewhere).put(b"hello")
    (tmp_path / "elsewhere").rename(tmp_path / "unmounted")
    (tmp_path / "elsewhere").write_text("")  # where a folder should be mounted
    with pytest.raises(SetupError):
        open_blobs(home, (tmp_path / "third").as_uri())
    assert remembered(home).url == elsewhere
    (tmp_path / "elsewhere").unlink()
    (tmp_path / "unmounted").rename(tmp_path / "elsewhere")
    assert open_blobs(home, (tmp_path / "third").as_uri()).url == (tmp_path / "third").as_uri()


def test_a_disk_that_is_not_mounted_is_never_taken_for_an_empty_store(home: Path, elsewhere: str, tmp_path: Path) -> None:
    """Else what is put now would be out of sight once it is mounted again."""
    sha256 = open_blobs(home, elsewhere).put(b"hello")
    (tmp_path / "elsewhere").rename(tmp_path / "unmounted")
    with pytest.raises(StoreUnavailable, match="mount its disk"):
        open_blobs(home)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "elsewhere").mkdir()  # the mount point
    with pytest.raises(SetupError, match="mount its disk"):
        open_blobs(home)
    assert not any((tmp_path / "elsewhere").iterdir())
    (tmp_path / "elsewhere").rmdir()
    (tmp_path / "unmounted").rename(tmp_path / "elsewhere")
    assert open_blobs(home).get(sha256) == b"hello"


def test_memory_is_no_place_for_a_home(home: Path) -> None:
    with pytest.raises(SetupError, match="keeps nothing when the server ends"):
        open_blobs(home, "memory://")


def test_a_running_platform_keeps_its_store(home: Path, elsewhere: str) -> None:
    check_change(home, (home / "blobs").as_uri(), running=True)
    check_change(home, "", running=True)
    with pytest.raises(Conflict, match="`phalanx down` first"):
        check_change(home, elsewhere, running=True)


def test_a_variable_chooses_for_a_fresh_home_and_never_moves_an_old_one(home: Path, elsewhere: str, tmp_path: Path) -> None:
    assert choice(home, "", {}) == ""
    assert choice(home, "", {"PHALANX_STORE": elsewhere}) == elsewhere
    open_blobs(home, elsewhere)
    assert choice(home, "", {"PHALANX_STORE": elsewhere}) == elsewhere
    other = (tmp_path / "other").as_uri()
    with pytest.raises(SetupError, match=r"PHALANX_STORE.*blobs are in.*say --store"):
        choice(home, "", {"PHALANX_STORE": other})
    assert choice(home, other, {"PHALANX_STORE": elsewhere}) == other


def test_a_variable_never_leaves_blobs_behind(home: Path, elsewhere: str) -> None:
    open_blobs(home).put(b"hello")
    with pytest.raises(SetupError, match="PHALANX_STORE"):
        choice(home, "", {"PHALANX_STORE": elsewhere})
    assert choice(home, elsewhere, {}) == elsewhere


def test_a_relative_path_is_made_absolute_here_not_in_the_server(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert choice(home, "blobs", {}) == (tmp_path / "blobs").as_uri()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff"])
def test_a_damaged_memory_is_named(home: Path, content: bytes) -> None:
    (home / FILE).write_bytes(content)
    with pytest.raises(SetupError, match=r"store\.json"):
        open_blobs(home)
    (home / FILE).unlink()
    assert remembered(home) == Remembered()
    shutil.rmtree(home)


def test_a_full_disk_while_blobs_are_copied_changes_nothing(home: Path, elsewhere: str) -> None:
    sha256 = open_blobs(home).put(b"x" * 100_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # writes past it fail as on a full disk
    try:
        with pytest.raises(SetupError, match="something is away"):
            open_blobs(home, elsewhere)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert remembered(home).url == ""
    assert open_blobs(home).get(sha256) == b"x" * 100_000
    assert open_blobs(home, elsewhere).get(sha256) == b"x" * 100_000
