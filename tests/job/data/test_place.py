"""A kill between the renames that replace a data set leaves one of both findable, and the next run puts things right."""

import fcntl
import logging
import os
from pathlib import Path

import pytest

from phalanx.core.errors import DataError
from phalanx.job.data.open import open_data
from phalanx.job.data.place import check_out, move_into_place
from tests.job.data.random_tokens import write_tokens


class Killed(BaseException):
    pass


@pytest.fixture
def half_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`out`, which a kill has left moved aside, its successor beside it."""
    out, made = tmp_path / "out", tmp_path / ".out.preparing"
    write_tokens(out, [1000])
    write_tokens(made, [2000])
    rename = Path.rename

    def once(path: Path, target: Path) -> Path:
        if path == made:
            raise Killed
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", once)
        with pytest.raises(Killed):
            move_into_place(made, out, force=True)
    assert not out.exists() and made.is_dir()
    return out


def test_whoever_opens_it_hears_where_it_is(half_replaced: Path) -> None:
    with pytest.raises(DataError, match=r"was killed while it replaced it; the data from before is in .*\.out\.replaced") as caught:
        open_data(half_replaced)
    assert caught.value.value == str(half_replaced)


def test_the_next_run_puts_it_back_and_says_so(half_replaced: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_out(half_replaced, [], force=False)
    assert open_data(half_replaced).num_tokens("train") == 1000
    assert f"{half_replaced} is back" in caplog.text and "killed" in caplog.text
    move_into_place(half_replaced.with_name(".out.preparing"), half_replaced, force=True)
    assert open_data(half_replaced).num_tokens("train") == 2000
    assert [path.name for path in half_replaced.parent.iterdir()] == ["out"]


def test_a_run_that_is_at_it_is_left_alone(half_replaced: Path) -> None:
    """It is between its renames now."""
    held = os.open(half_replaced.with_name(".out.preparing"), os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    check_out(half_replaced, [], force=False)
    assert not half_replaced.exists()
    os.close(held)


def test_what_cannot_be_put_in_place_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, made = tmp_path / "out", tmp_path / ".out.preparing"
    write_tokens(out, [1000])
    write_tokens(made, [2000])
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path == made:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(OSError, match="No space"):
        move_into_place(made, out, force=True)
    assert open_data(out).num_tokens("train") == 1000
