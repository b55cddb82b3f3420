"""Packing a folder: what is taken, that it is deterministic, and that problems are named."""

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import SpecError
from phalanx.storage import workdir
from phalanx.storage.workdir import pack, unpack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "code"
    (root / "pkg" / "__pycache__").mkdir(parents=True)
    (root / "train.py").write_text("print('hi')\n")
    (root / "pkg" / "a.py").write_text("A = 1\n")
    (root / "pkg" / "__pycache__" / "a.pyc").write_text("junk")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    return root


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def packed_names(folder: Path, tmp_path: Path) -> set[str]:
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    unpack(pack(folder), out)
    return {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_symlink() or path.is_file()}


def test_a_plain_folder_comes_back_with_modes_and_links(folder: Path, tmp_path: Path) -> None:
    (folder / "latest").symlink_to("pkg")
    (folder / "pkg" / "up.py").symlink_to("../train.py")
    assert packed_names(folder, tmp_path) == {"train.py", "pkg/a.py", "run.sh", "latest", "pkg/up.py"}
    out = tmp_path / "out"
    assert os.access(out / "run.sh", os.X_OK)
    assert (out / "train.py").stat().st_mode & 0o777 == 0o644
    assert (out / "latest" / "a.py").read_text() == "A = 1\n"
    assert (out / "pkg" / "up.py").read_text() == "print('hi')\n"


def test_the_same_tree_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy, symlinks=True)
    os.utime(copy / "train.py", (1, 1))
    (copy / "train.py").chmod(0o600)
    assert pack(folder) == pack(copy)
    (copy / "train.py").write_text("other")
    assert pack(folder) != pack(copy)


def test_git_decides_in_a_checkout(folder: Path, tmp_path: Path) -> None:
    git(folder, "init")
    (folder / ".gitignore").write_text("*.log\nscratch/\n")
    git(folder, "add", "train.py", "pkg/a.py", ".gitignore")
    (folder / "noise.log").write_text("x")
    (folder / "new.py").write_text("not yet tracked")
    (folder / "gone.py").write_text("x")
    git(folder, "add", "gone.py")
    (folder / "gone.py").unlink()
    (folder / "scratch").mkdir()
    (folder / "scratch" / "work.py").write_text("x")
    assert packed_names(folder, tmp_path) == {"train.py", "pkg/a.py", "pkg/__pycache__/a.pyc", "run.sh", ".gitignore", "new.py"}
    assert packed_names(folder / "pkg", tmp_path) == {"a.py", "__pycache__/a.pyc"}
    assert packed_names(folder / "scratch", tmp_path) == {"work.py"}, "an ignored folder that is named is packed whole"


def test_a_tracked_folder_that_became_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.py").write_text("not yours")
    git(folder, "init")
    git(folder, "add", ".")
    shutil.rmtree(folder / "pkg")
    (folder / "pkg").symlink_to(tmp_path / "secret")
    with pytest.raises(SpecError, match="is a link that points to"):
        pack(folder)
    (folder / "pkg").unlink()
    (folder / "other").mkdir()
    (folder / "pkg").symlink_to("other")
    assert packed_names(folder, tmp_path) == {"train.py", "run.sh", "pkg"}


def test_a_checkout_inside_a_checkout_is_packed_by_its_own_rules(folder: Path, tmp_path: Path) -> None:
    git(folder, "init")
    inner = folder / "vendor"
    inner.mkdir()
    git(inner, "init")
    (inner / ".gitignore").write_text("*.o\n")
    (inner / "lib.c").write_text("x")
    (inner / "lib.o").write_text("x")
    assert {"vendor/lib.c", "vendor/.gitignore"} == {name for name in packed_names(folder, tmp_path) if name.startswith("vendor")}


@pytest.mark.parametrize("checkout", [True, False])
def test_phalanxignore_leaves_out_more(folder: Path, tmp_path: Path, checkout: bool) -> None:
    if checkout:
        git(folder, "init")
        git(folder, "add", ".")
    (folder / ".phalanxignore").write_text("# big things\n*.sh\n/pkg/*\n!/pkg/a.py\n")
    assert packed_names(folder, tmp_path) == {"train.py", "pkg/a.py", ".phalanxignore"}


def test_an_environment_that_names_another_checkout_changes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(folder, "init")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert "train.py" in packed_names(folder, tmp_path)


def test_sockets_and_pipes_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "a").write_text("x")
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)  # a socket's path has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        assert packed_names(root, tmp_path) == {"a"}


def test_an_empty_folder_is_a_workdir(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert packed_names(tmp_path / "empty", tmp_path) == set()
    assert (tmp_path / "out").is_dir()


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "pkg/../../outside", "pkg/../train.py"])
def test_a_link_that_may_leave_is_refused_by_name(folder: Path, target: str) -> None:
    (folder / "link").symlink_to(target)
    with pytest.raises(SpecError, match="is a link that points to") as caught:
        pack(folder)
    assert caught.value.field == "workdir"
    assert str(caught.value.value).endswith("link")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not a folder") as caught:
        pack(tmp_path / "none")
    assert caught.value.field == "workdir"


def test_too_large_a_folder_names_the_largest_file(folder: Path) -> None:
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(SpecError, match=r"weights\.bin \(65\.0 MiB\).*\.phalanxignore"):
        pack(folder)
    (folder / ".phalanxignore").write_text("*.bin\n")
    pack(folder)


def test_a_file_that_grows_meanwhile_is_still_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = workdir._check_size

    def then_grow(folder: Path, names: Sequence[str]) -> None:
        check(folder, names)
        with (folder / "train.py").open("wb") as file:
            file.truncate(65 * 2**20)

    monkeypatch.setattr(workdir, "_check_size", then_grow)
    with pytest.raises(SpecError, match=r"train\.py \(64\.0 MiB\)"):
        pack(folder)


def test_too_many_files_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workdir, "MEMBERS_MAX", 2)
    with pytest.raises(SpecError, match="has 3 files, over 2"):
        pack(folder)


def test_a_name_that_is_not_utf8_is_refused(folder: Path) -> None:
    (folder / os.fsdecode(b"bad\xff.py")).write_text("")
    with pytest.raises(SpecError, match="not UTF-8"):
        pack(folder)


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60).filter(
    lambda name: name not in (".", "..", ".git", "__pycache__", ".venv", ".phalanxignore") and len(name.encode()) <= 200
)


@given(files=st.dictionaries(NAMES, st.binary(max_size=200), max_size=5))
def test_any_tree_survives(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("tree")
    (base / "in" / "deep").mkdir(parents=True)
    for name, content in files.items():
        (base / "in" / "deep" / name).write_bytes(content)
    unpack(pack(base / "in"), base / "out")
    found = {path.name: path.read_bytes() for path in (base / "out").rglob("*") if path.is_file()}
    assert found == files
