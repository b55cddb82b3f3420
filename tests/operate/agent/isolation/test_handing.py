"""Files change hands within a job's tree, never outside, whatever the job has put there."""

import os
from pathlib import Path

import pytest

from phalanx.core.errors import SetupError
from phalanx.operate.agent.isolation.handing import DEPTH_MAX, hand_over

pytestmark = pytest.mark.needs_root
POOL = range(300_000, 300_010)
NEW = 300_001


def owner(path: Path) -> int:
    return path.lstat().st_uid


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    job = tmp_path / "job"
    (job / "work" / "deep").mkdir(parents=True)
    for name in ("work/old", "work/deep/agents"):
        (job / name).write_text("x")
    os.chown(job / "work" / "old", 300_007, 300_007)
    return job


def test_the_agents_and_those_of_earlier_users_become_the_new_ones(tree: Path) -> None:
    hand_over(tree, NEW, POOL)
    everything = [tree, *tree.rglob("*")]
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in everything} == {(NEW, NEW)}


def test_what_is_anybody_elses_stays_so(tree: Path) -> None:
    os.chown(tree / "work" / "old", 1234, 1234)
    hand_over(tree, NEW, POOL)
    assert owner(tree / "work" / "old") == 1234
    (tree / "work" / "fresh").write_text("x")
    hand_over(tree, NEW, POOL, own=False)
    assert owner(tree / "work" / "fresh") == 0


def test_the_users_folders_are_closed_to_all_others_where_that_is_asked_for(tree: Path) -> None:
    (tree / "work").chmod(0o2777)
    os.chown(tree / "work", 300_007, 300_007)
    hand_over(tree, NEW, POOL, own=False, close=True)
    assert (tree / "work").stat().st_mode & 0o7777 == 0o700
    assert tree.stat().st_mode & 0o077 != 0, "root's own is root's to close"
    (tree / "work").chmod(0o755)
    hand_over(tree, NEW, POOL, own=False)
    assert (tree / "work").stat().st_mode & 0o777 == 0o755


def test_links_are_given_and_never_followed(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    (tree / "work" / "to-file").symlink_to(outside / "file")
    (tree / "work" / "to-folder").symlink_to(outside)
    hand_over(tree, NEW, POOL)
    assert owner(outside) == owner(outside / "file") == 0 and owner(tree / "work" / "to-folder") == NEW
    with pytest.raises(OSError, match="Not a directory"):
        hand_over(tree / "work" / "to-folder", NEW, POOL)


def test_a_file_with_a_second_name_may_be_the_machines(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text("x")
    (tree / "work" / "hard").hardlink_to(tmp_path / "shadow")
    hand_over(tree, NEW, POOL)
    assert owner(tmp_path / "shadow") == 0


def test_a_tree_without_end_is_refused(tree: Path) -> None:
    deep = tree.joinpath(*["d"] * (DEPTH_MAX + 2))
    deep.mkdir(parents=True)
    with pytest.raises(SetupError, match="folders more than 100 deep"):
        hand_over(tree, NEW, POOL)
