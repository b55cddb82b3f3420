"""The manifest alone: what it refuses, and what retention removes."""

from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.errors import CheckpointError
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.manifest import FileEntry, Manifest, Origin
from phalanx.job.checkpoint.retention import keep_newest
from phalanx.job.checkpoint.save import SavePolicy

ORIGIN = Origin(config="c", data="d", world_size=1, layout={"dp": 1})


def make(root: Path, step: int) -> tuple[Path, Manifest]:
    folder = root / manifest.folder_name(step)
    folder.mkdir(parents=True)
    (folder / "part").write_bytes(b"x" * step)
    made = Manifest(step=step, origin=ORIGIN, dtype="fp32", extra={"loss": "0x1.8p+0"}, files=(manifest.entry_of(folder / "part"),))
    manifest.commit(folder, made)
    return folder, made


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    folder, made = make(tmp_path, 7)
    read, digest = manifest.read(folder)
    assert read == made and len(digest) == 64
    manifest.verify(folder, read)


@pytest.mark.parametrize("name", ["../part", "/etc/hostname", "a/b", ".."])
def test_a_file_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder, made = make(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"not a plain file|is missing"):
        manifest.verify(folder, replace(made, files=(FileEntry(name=name, size_bytes=1, sha256="0" * 64),)))


def test_a_link_is_refused(tmp_path: Path) -> None:
    folder, made = make(tmp_path, 1)
    (folder / "part").rename(tmp_path / "elsewhere")
    (folder / "part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="part"):
        manifest.verify(folder, made)


@pytest.mark.parametrize("text", ["", "{}", "null", '{"sha256": 1}'])
def test_what_is_not_a_manifest_is_refused_by_name(tmp_path: Path, text: str) -> None:
    folder, _ = make(tmp_path, 1)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        manifest.read(folder)


def test_a_changed_number_in_the_manifest_is_noticed(tmp_path: Path) -> None:
    folder, _ = make(tmp_path, 1)
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace("0x1.8p+0", "0x1.9p+0"))
    with pytest.raises(CheckpointError, match="own checksum"):
        manifest.read(folder)


@pytest.mark.parametrize("other", [1, manifest.FORMAT + 1])
def test_another_format_is_refused_by_its_number(tmp_path: Path, other: int) -> None:
    folder, made = make(tmp_path, 1)
    manifest.commit(folder, replace(made, format=other))
    with pytest.raises(CheckpointError, match=f"format {other}"):
        manifest.read(folder)


def test_order_is_by_number_and_strangers_are_left_alone(tmp_path: Path) -> None:
    for step in (9, 100_000_000, 20):
        make(tmp_path, step)
    (tmp_path / "step-notes").mkdir()
    assert [step for step, _ in manifest.committed(tmp_path)] == [100_000_000, 20, 9]
    assert keep_newest(tmp_path, 20, 1) == ["step-00000009"]
    assert (tmp_path / "step-notes").exists() and (tmp_path / "step-100000000").exists()


def test_the_newest_is_kept_even_when_none_is_asked_for(tmp_path: Path) -> None:
    make(tmp_path, 1)
    make(tmp_path, 2)
    keep_newest(tmp_path, 2, 0)
    assert [step for step, _ in manifest.committed(tmp_path)] == [2]


def test_when_a_save_is_due() -> None:
    every_four = SavePolicy(root=Path(), every=4, keep_last=1)
    assert [step for step in range(1, 11) if every_four.due(step, 10)] == [4, 8, 10]
    never = SavePolicy(root=Path(), every=0, keep_last=1)
    assert [step for step in range(1, 11) if never.due(step, 10)] == [10]
