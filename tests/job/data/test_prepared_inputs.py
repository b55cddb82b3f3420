"""What we made is no text and no image: it is not read where it lies among the inputs, and not put there."""

import shutil
from pathlib import Path

import pytest

from phalanx.core.errors import DataError
from phalanx.job.data.prepare import prepare
from phalanx.job.data.tars.open import open_samples
from phalanx.job.data.tars.pack import pack
from tests.job.data.image_folders import CLASSES, write_images
from tests.job.data.prepare_cases import contents, write_texts
from tests.job.data.random_tokens import write_tokens


@pytest.fixture
def web(tmp_path: Path) -> Path:
    """Six texts, a folder of tokens in the one of three of them, and another `manifest.json`, which is a text."""
    write_texts(tmp_path / "web/a", files=3, lines=9)
    write_texts(tmp_path / "web/b", files=3, lines=9)
    write_tokens(tmp_path / "web/a/data", [100])
    (tmp_path / "web/b/manifest.json").write_text('{"format": 1, "name": "a web page"}')
    return tmp_path / "web"


@pytest.mark.parametrize("pattern", ["", "**/*.*", "[ab]/**"])
def test_a_prepared_folder_among_the_texts_is_not_entered(web: Path, tmp_path: Path, tokenizer: Path, pattern: str) -> None:
    (source,) = prepare([str(web / pattern) if pattern else web], tmp_path / "out", tokenizer=tokenizer).sources
    assert (source.documents, source.skipped_binary) == (7, 0)


@pytest.mark.parametrize("path", ["web/a/data", "web/a/data/*.json", "web/a/data/**"])
def test_a_prepared_folder_is_no_text(web: Path, tmp_path: Path, tokenizer: Path, path: str) -> None:
    with pytest.raises(DataError, match="is a prepared folder, not text"):
        prepare([web.parent / path], tmp_path / "out", tokenizer=tokenizer)


def test_a_file_of_a_prepared_folder_may_be_named(web: Path, tmp_path: Path, tokenizer: Path) -> None:
    made = prepare([web / "a", web / "a/data/manifest.json"], tmp_path / "out", tokenizer=tokenizer)
    assert [source.documents for source in made.sources] == [3, 1]


@pytest.mark.parametrize("given_as", ["folder", "link", "URL", "pattern"])
def test_a_folder_made_inside_its_own_input_is_not_read_now_nor_the_next_time(
    web: Path, tmp_path: Path, tokenizer: Path, given_as: str
) -> None:
    (tmp_path / "link").symlink_to(web)
    paths = {"folder": str(web), "link": str(tmp_path / "link"), "URL": f"file://{web}", "pattern": f"{web}/**"}
    (web / "b/of-out.txt").symlink_to(web / "b/deep/out/tokenizer.json")  # dangles the first time
    for out in (web / "out", web / "b/deep/out"):
        first = prepare([paths[given_as]], out, tokenizer=tokenizer)
        before = contents(out)
        assert (first.sources[0].documents, first.sources[0].skipped_binary) == (7, 0)
        assert prepare([paths[given_as]], out, tokenizer=tokenizer) == first
        assert contents(out) == before
        shutil.rmtree(out)


def test_nothing_is_made_inside_a_prepared_folder(web: Path, tokenizer: Path) -> None:
    before = sorted((web / "a/data").iterdir())
    for out in (web / "a/data/out", web / "a/data/deep/out"):
        with pytest.raises(DataError, match=r"lies inside .*web/a/data, which is a prepared folder; name one beside it"):
            prepare([web], out, tokenizer=tokenizer)
    assert sorted((web / "a/data").iterdir()) == before


def test_images_are_packed_beside_their_folder_and_what_was_prepared_is_none(tmp_path: Path) -> None:
    images = tmp_path / "images"
    write_images(images, each=2)
    for out in (images / "out", images / "cat/out"):
        with pytest.raises(DataError, match="lies inside the input"):
            pack(images, out)
    write_tokens(images / "tokens", [100])
    write_tokens(images / "cat/tokens", [100])
    (images / "cat/tokens/x.png").write_bytes(b"x")
    data = open_samples(pack(images, tmp_path / "out"))
    assert (data.classes, len(data), dict(data.manifest.skipped)) == (CLASSES, 6, {})
    with pytest.raises(DataError, match="is a prepared folder, not images"):
        pack(tmp_path / "out", tmp_path / "again")
