"""Where a notebook server is, by files that its job may write: a token and a path, or nothing."""

import json
import os
from pathlib import Path

import pytest

from phalanx.core.channels import NotebookPlace
from phalanx.operate.agent.terminal import notebook

SAID = f"{notebook.FOLDER}/{notebook.TOKEN_FILE}.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    notebook.prepare(tmp_path)
    (tmp_path / SAID).write_text(json.dumps({"module": "jupyterlab", "path": "/lab"}))
    return tmp_path


def test_it_is_where_its_files_say_and_its_token_stays(folder: Path) -> None:
    token = (folder / notebook.TOKEN_FILE).read_text()
    assert notebook.place(folder, 7) == NotebookPlace(7, token, "/lab")
    notebook.prepare(folder)
    assert notebook.place(folder, 7) == NotebookPlace(7, token, "/lab")
    assert {(folder / name).stat().st_mode & 0o077 for name in (notebook.TOKEN_FILE, notebook.FOLDER)} == {0}


def test_one_that_an_older_agent_started_is_found_beside_its_token(folder: Path) -> None:
    (folder / SAID).rename(folder / f"{notebook.TOKEN_FILE}.json")
    assert notebook.place(folder, 7) is None
    (folder / notebook.FOLDER).rmdir()
    found = notebook.place(folder, 7)
    assert found is not None and found.path == "/lab"


@pytest.mark.parametrize(
    "said", ['{"path": "@elsewhere.example/"}', '{"path": "/\\u001b[2J"}', '{"path": 7}', "[]", "", "[" * 60_000, " " * 70_000]
)
def test_what_is_no_path_is_none(folder: Path, said: str) -> None:
    (folder / SAID).write_text(said)
    assert notebook.place(folder, 7) is None


def test_nothing_is_waited_at_or_followed(folder: Path) -> None:
    (folder / SAID).rename(folder / "kept")
    (folder / SAID).symlink_to(folder / "kept")
    assert notebook.place(folder, 7) is None
    (folder / SAID).unlink()
    os.mkfifo(folder / SAID)
    assert notebook.place(folder, 7) is None


def test_a_token_that_is_none_is_given_to_nobody(folder: Path) -> None:
    (folder / notebook.TOKEN_FILE).write_text("x\r\nHost: elsewhere")
    assert notebook.place(folder, 7) is None
