"""Files that are whole or absent, also when the disk refuses. The refusals are real: a size limit, a folder of the kernel's."""

import contextlib
import hashlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.storage.atomic import write_atomic
from phalanx.storage.hashes import is_sha256, sha256_bytes, sha256_file


@contextlib.contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Writes past it fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_replaced_whole_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_atomic(path, b"old")
    write_atomic(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_full_disk_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with file_size_limit(1000), pytest.raises(StoreUnavailable, match="nothing was changed"):
        write_atomic(path, b"x" * 100_000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_the_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="a file where a folder is needed"):
        write_atomic(tmp_path / "file" / "below", b"")
    with pytest.raises(SetupError, match="choose another place"):
        write_atomic(Path("/sys/phalanx-test/file"), b"")
    with pytest.raises(SetupError, match="too long"):
        write_atomic(tmp_path / ("x" * 300) / "file", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SetupError, match="is a folder where a file is needed"):
        write_atomic(tmp_path / "folder", b"")


def test_hashes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc" * 100_000)
    digest = hashlib.sha256(b"abc" * 100_000).hexdigest()
    assert sha256_file(tmp_path / "file") == sha256_bytes(b"abc" * 100_000) == digest
    assert is_sha256(digest)
    assert not any(is_sha256(text) for text in ("", "../x", digest.upper(), digest + "\n", digest[:-1]))
