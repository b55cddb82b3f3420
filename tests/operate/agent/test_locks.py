"""What makes two environments one, and what keeps them apart."""

from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.operate.agent.locks import Lock, environment_key, read_lock

PLAIN = """
# a comment
--index-url https://index.example/simple
--extra-index-url=https://other.example/simple
--no-binary :all:
numpy==2.0.0 ; python_version >= "3.11" \\
    --hash=sha256:00 \\
    --hash=sha256:11
ray[default,air]==2.60.0  # why
torch @ https://wheels.example/torch-2.11-cp311.whl
mine @ git+https://code.example/mine@v1
six
typing-extensions>=4.1,<5
"""


def lock_of(tmp_path: Path, name: str, text: str, **beside: str) -> Lock:
    folder = tmp_path / "work" / Path(name).parent
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "work" / name).write_text(text)
    for other, content in beside.items():
        (folder / other.replace("__", ".").replace("dash_", "-")).write_text(content)
    return read_lock(tmp_path / "work", name)


def key_of(lock: Lock, python: str = "CPython 3.11.7", platform: str = "linux-x86_64", code: str = "c0de") -> str:
    return environment_key(lock, python, platform, code)


def test_a_lock_that_names_only_an_index_is_shared_by_every_workdir(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, "requirements.txt", PLAIN)
    assert (lock.local, lock.hashed) == (False, True)
    assert key_of(lock, code="one") == key_of(lock, code="two")
    assert key_of(lock) == key_of(lock_of(tmp_path, "sub/other.txt", PLAIN)), "its name and place tell nothing apart"


@pytest.mark.parametrize(
    "line",
    [
        "./mine",
        "mine/",
        "-e .",
        "-e ./mine",
        "--editable=mine",
        "-r other.txt",
        "-c limits.txt",
        "--find-links ./wheels",
        "--find-links wheels",
        "-f /srv/wheels",
        "--index-url file:///srv/index",
        "mine @ file:///srv/mine",
        "mine @ ./mine",
        "mine-1.0-py3-none-any.whl",
        "file:mine",
        "/srv/mine",
        "../mine",
        "mine.tar.gz",
        "git+file:///srv/mine",
    ],
)
def test_a_lock_that_refers_to_paths_belongs_to_its_workdir(tmp_path: Path, line: str) -> None:
    lock = lock_of(tmp_path, "requirements.txt", f"six==1.16.0\n{line}\n")
    assert lock.local
    assert key_of(lock, code="one") != key_of(lock, code="two")


@pytest.mark.parametrize(
    ("source", "local"),
    [
        ('{ registry = "https://index.example/simple" }', False),
        ('{ virtual = "." }', False),
        ('{ editable = "." }', False),
        ('{ git = "https://code.example/x?rev=1#2" }', False),
        ('{ url = "https://wheels.example/x.whl" }', False),
        ('{ registry = "wheels" }', True),
        ('{ path = "wheels/x.whl" }', True),
        ('{ directory = "packages/x" }', True),
        ('{ editable = "packages/x" }', True),
        ('{ virtual = "packages/x" }', True),
    ],
)
def test_a_uv_lock_is_local_by_the_sources_of_its_packages(tmp_path: Path, source: str, local: bool) -> None:
    text = f'version = 1\n[[package]]\nname = "x"\nversion = "1"\nsource = {source}\n'
    assert lock_of(tmp_path, "uv.lock", text, pyproject__toml='[project]\nname = "p"\n').local is local


def test_everything_that_uv_reads_is_in_the_key(tmp_path: Path) -> None:
    text = "version = 1\n"
    lock = lock_of(tmp_path, "uv.lock", text, pyproject__toml='[project]\nname = "p"\n')
    others = [
        replace(lock, files={**lock.files, "uv.lock": b"version = 1\n\n"}),
        replace(lock, files={**lock.files, "pyproject.toml": b"[project]\nname = 'q'\n"}),
        replace(lock, files={**lock.files, "uv.toml": b"offline = true"}),
        replace(lock, python="3.13"),
        replace(lock, kind="requirements"),
    ]
    keys = [key_of(other) for other in [lock, *others]]
    keys += [key_of(lock, python="CPython 3.12.1"), key_of(lock, platform="linux-aarch64")]
    assert len(set(keys)) == len(keys)


def test_a_python_version_file_beside_the_lock_is_asked_for(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, "requirements.txt", "six\n", **{"__python-version": "# of the team\n3.12\n3.11\n"})
    assert lock.python == "3.12"
