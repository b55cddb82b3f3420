"""The key of gangs' tokens: the same for whoever leads the home, and nobody else's to read."""

import stat
from pathlib import Path

import pytest

from phalanx.operate.control.gang_keys import KEY_FILE, gang_key


def test_it_is_made_once_and_private(tmp_path: Path) -> None:
    key = gang_key(tmp_path)
    assert len(key) == 32
    (tmp_path / KEY_FILE).chmod(0o644)
    assert gang_key(tmp_path) == key
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("damaged", [b"", b"ff", b"\xff\xfe", b"not hex"])
def test_a_damaged_one_is_made_anew(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / KEY_FILE).write_bytes(damaged)
    key = gang_key(tmp_path)
    assert len(key) == 32
    assert gang_key(tmp_path) == key
