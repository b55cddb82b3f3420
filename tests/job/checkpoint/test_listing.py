"""`phalanx checkpoint ls` and `verify` on real folders, through app.py as people run them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phalanx import app
from phalanx.core.errors import NotFound
from phalanx.job.checkpoint import shard_file
from phalanx.job.checkpoint.commit import Content, Saved, announce, commit_when_whole
from phalanx.job.checkpoint.listing import listed, verified
from phalanx.job.checkpoint.manifest import MANIFEST, Origin, folder_name
from phalanx.job.checkpoint.shard_file import Part, SaveKey
from phalanx.job.checkpoint.whole import TensorSpec

LENGTH = 3 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Steps 2 and 4 of two ranks, and 6, which was never committed."""
    for step in (2, 4, 6):
        folder, key = tmp_path / folder_name(step), SaveKey(step=step, save="ab", attempt="lm-1.1")
        for rank in (0, 1):
            part = Part(name="w", dtype="U8", shape=(2 * LENGTH,), start=(rank * LENGTH,), size=(LENGTH,))
            data = memoryview(bytes([rank]) * LENGTH)
            announce(folder, shard_file.write(folder, [(part, data)], key=key, rank=rank))
        origin = Origin(config="", data="", world_size=2, layout={"dp": 2})
        tensors = {"w": TensorSpec(dtype="U8", shape=(2 * LENGTH,))}
        content = Content(origin=origin, dtype="fp32", extra={}, metrics={"loss": 1.5}, tensors=tensors)
        if step < 6:
            assert isinstance(commit_when_whole(folder, key, content, patience_s=0), Saved)
    return tmp_path


def flip(root: Path) -> None:
    path = root / "step-00000004" / "shard-00001-ab.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 16
    path.write_bytes(data)


def test_all_are_listed_newest_first_and_one_alone(root: Path) -> None:
    found = listed(root)
    assert [(one.step, one.committed, one.problem == "", one.ranks, one.tensors) for one in found] == [
        (6, False, False, 0, 0), (4, True, True, 2, 1), (2, True, True, 2, 1)
    ]  # fmt: skip
    assert found[1].metrics == {"loss": 1.5} and found[1].size_bytes > 2 * LENGTH and found[1].attempt == "lm-1.1"
    assert listed(root / "step-00000004") == found[1:2]


def test_only_reading_finds_a_flipped_bit(root: Path) -> None:
    flip(root)
    assert not any(one.problem for one in listed(root) if one.committed)
    told: list[tuple[str, int, int]] = []
    found = verified(root, lambda name, done, total: told.append((name, done, total)))
    assert [one.verified for one in found] == [False, False, True]
    assert found[1].problem == f"shard-00001-ab.safetensors: w@{LENGTH} does not match its checksum"
    assert found[1].ranks == 2  # what could be read is shown
    sizes = {name: (done, total) for name, done, total in told}
    assert sizes["step-00000002"][0] == sizes["step-00000002"][1] > 2 * LENGTH and len(told) > 8


def test_a_folder_without_checkpoints_is_told_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no checkpoint"):
        listed(tmp_path)
    with pytest.raises(NotFound, match="no such folder"):
        verified(tmp_path / "none", lambda *_: None)


def test_the_command_names_file_and_part_and_exits_with_1(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["checkpoint", "verify", str(root)]) == 0
    assert capsys.readouterr().out.count("verified") == 2
    flip(root)
    assert app.main(["checkpoint", "verify", str(root / "step-00000004"), "-o", "json"]) == 1
    (shown,) = json.loads(capsys.readouterr().out)
    assert "shard-00001-ab.safetensors" in shown["problem"] and not shown["verified"]
    (root / "step-00000004" / MANIFEST).write_text("{}")
    assert app.main(["checkpoint", "ls", str(root)]) == 0
    assert "step-00000004/manifest.json: is not a manifest" in capsys.readouterr().out


def test_the_command_needs_no_torch(root: Path) -> None:
    code = (
        "import sys; from phalanx import app; code = app.main(sys.argv[1:]); "
        "sys.exit(code or 10 * any(name in sys.modules for name in ('torch', 'numpy', 'safetensors')))"
    )
    words: Any = [sys.executable, "-c", code, "checkpoint", "verify", str(root)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
