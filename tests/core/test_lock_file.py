"""A lock is refused for what it is before anything is built from it: on disk, in the pack, and on the node alike."""

import gzip
from pathlib import Path

import pytest

from phalanx.client.packed import check_lock
from phalanx.core.errors import SpecError
from phalanx.core.lock_file import LOCK_BYTES_MAX, checked_lock, kind_of, requirement_lines
from phalanx.core.spec import Environment, JobSpec
from phalanx.core.spec_parse import load_spec, parse_spec
from phalanx.storage.workdir import pack

PROJECT = b'[project]\nname = "p"\n'
GOOD = {"uv.lock": b"version = 1\n", "pyproject.toml": PROJECT, "needs.txt": b"six==1.16.0\n"}
BAD: list[tuple[str, dict[str, bytes], str]] = [
    ("needs.txt", {}, "absent here"),
    ("needs.txt", {"needs.txt": b""}, "is empty"),
    ("needs.txt", {"needs.txt": b" \n\n"}, "is empty"),
    ("needs.txt", {"needs.txt": b"# only words\n"}, "names no package"),
    ("needs.txt", {"needs.txt": b"six\xff\n"}, "is not UTF-8 text (byte 3)"),
    ("needs.txt", {"needs.txt": b"a" * (LOCK_BYTES_MAX + 1)}, "keep it under"),
    ("uv.lock", {"uv.lock": b"version = 1\n"}, "absent here"),
    ("uv.lock", {"uv.lock": b"version = 1\n", "pyproject.toml": b""}, "is empty"),
    ("uv.lock", {"uv.lock": b"version 1\n", "pyproject.toml": PROJECT}, "is not TOML"),
    ("sub/uv.lock", {"sub/uv.lock": b"version = 1\n", "pyproject.toml": PROJECT}, "absent here"),
    ("environment.yml", {"environment.yml": b"a: 1\n"}, "name a uv.lock, or a requirements file"),
    ("poetry.lock", {"poetry.lock": b"a = 1\n"}, "name a uv.lock, or a requirements file"),
]


@pytest.mark.parametrize(("lock", "files", "words"), BAD)
def test_what_is_wrong_with_a_lock_is_said(lock: str, files: dict[str, bytes], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        checked_lock(lock, files.get, "absent here")
    assert refused.value.field == "environment.lock"
    assert words in refused.value.fix


@pytest.mark.parametrize("lock", ["uv.lock", "needs.txt", "./needs.txt"])
def test_good_ones_are_read(lock: str) -> None:
    assert checked_lock(lock, GOOD.get, "absent").encode() == GOOD[lock.removeprefix("./")]


def test_its_kind_is_its_name() -> None:
    assert [kind_of(name) for name in ("a/uv.lock", "requirements-gpu.txt", "uv.lock.bak", "txt")] == [
        "uv",
        "requirements",
        None,
        None,
    ]


def test_lines_are_joined_and_comments_left_out() -> None:
    text = "# all\nsix==1 \\\n  --hash=sha256:0  # why\n\n  a @ https://x/#egg=a\n"
    assert requirement_lines(text) == ("six==1    --hash=sha256:0", "a @ https://x/#egg=a")


def folder_with(tmp_path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_bytes(content)
    (tmp_path / "code").mkdir(exist_ok=True)
    return tmp_path / "code"


def job_file(tmp_path: Path, lock: str) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: x\nentrypoint: 'true'\nworkdir: code\nenvironment: {{lock: {lock}}}\n")
    return file


@pytest.mark.parametrize(("lock", "files", "words"), [case for case in BAD if case[2] != "absent here"])
def test_a_job_file_with_a_bad_lock_is_refused_when_it_is_read(
    tmp_path: Path, lock: str, files: dict[str, bytes], words: str
) -> None:
    folder_with(tmp_path, files)
    with pytest.raises(SpecError, match=r"environment\.lock") as refused:
        load_spec(job_file(tmp_path, lock))
    assert words in refused.value.fix


def test_a_job_file_without_its_lock_is_refused_when_it_is_read(tmp_path: Path) -> None:
    folder_with(tmp_path, {})
    with pytest.raises(SpecError, match="is no file in workdir"):
        load_spec(job_file(tmp_path, "needs.txt"))
    (tmp_path / "code" / "needs.txt").mkdir()
    with pytest.raises(SpecError, match="is no file in workdir"):
        load_spec(job_file(tmp_path, "needs.txt"))


def test_an_unreadable_kind_is_refused_for_a_spec_in_memory_too() -> None:
    with pytest.raises(SpecError, match=r"requirements file whose name ends in \.txt"):
        parse_spec({"name": "x", "entrypoint": "true", "workdir": "/w", "environment": {"lock": "Pipfile.lock"}})


def spec_of(lock: str) -> JobSpec:
    return JobSpec(name="x", entrypoint="true", workdir="/w", environment=Environment(lock=lock))


def test_what_was_packed_decides(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, GOOD)
    (folder / "linked.txt").symlink_to("needs.txt")
    packed = pack(folder)
    for lock in ("uv.lock", "needs.txt", "linked.txt"):
        check_lock(spec_of(lock), packed)
    (folder / ".phalanxignore").write_text("needs.txt\n")
    for lock in ("needs.txt", "linked.txt"):
        with pytest.raises(SpecError, match="is not packed with workdir"):
            check_lock(spec_of(lock), pack(folder))
    with pytest.raises(SpecError, match="which was not packed"):
        check_lock(spec_of("needs.txt"), None)


@pytest.mark.parametrize("damaged", [b"", b"no archive", gzip.compress(b"x" * 600, mtime=0)[:-4]])
def test_a_damaged_pack_is_one_error(damaged: bytes) -> None:
    with pytest.raises(SpecError, match="workdir"):
        check_lock(spec_of("needs.txt"), damaged)


def test_a_spec_without_a_lock_needs_no_pack() -> None:
    check_lock(JobSpec(name="x", entrypoint="true"), None)
