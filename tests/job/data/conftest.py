"""A small corpus of real text, prepared once, for the tests of this folder."""

import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.job.data.prepare import prepare
from tests.job.data.prepare_cases import write_texts

STDLIB = Path(sysconfig.get_path("stdlib"))


def write_corpus(folder: Path) -> Path:
    """Forty of the library's modules, and what a folder also has: a picture, old encodings, hidden files, nothing."""
    (folder / "sub").mkdir(parents=True)
    for number, path in enumerate(sorted(STDLIB.glob("[a-m]*.py"))[:40]):
        shutil.copy(path, folder / "sub" / path.name if number % 2 else folder / path.name)
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "empty.txt").write_text("")
    (folder / "odd.txt").write_text("héllo <|endoftext|> 世界\r\n\ttab 🐍\n")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "config").write_text("x")
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text")


@pytest.fixture(scope="session")
def prepared_once(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several shards in each split. Only to be read; `prepared` gives a copy."""
    out = tmp_path_factory.mktemp("prepared") / "data"
    prepare([corpus], out, vocab_size=600, held_out=0.2, shard_tokens_max=20_000)
    return out


@pytest.fixture
def prepared(prepared_once: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(prepared_once, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def make_corpus(tmp_path: Path) -> Callable[[], Path]:
    return lambda: write_corpus(tmp_path / "text")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two megabytes in a hundred and twenty files."""
    return write_texts(tmp_path_factory.mktemp("texts") / "texts", files=120, lines=250)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained tokenizer of 400 tokens, to be given."""
    few = write_texts(tmp_path_factory.mktemp("few") / "few", files=20, lines=40)
    out = few.with_name("data")
    prepare([few], out, vocab_size=400)
    return out / "tokenizer.json"
