"""What stands at `--out` is replaced by the very same data set alone, unless it is told to be."""

from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.core.errors import Conflict
from phalanx.job.data.from_megatron import import_megatron
from phalanx.job.data.imported import ImportAsked
from phalanx.job.data.mds.export import export
from phalanx.job.data.mds.samples import import_samples
from phalanx.job.data.mds.tokens import TokensAsked, import_tokens
from phalanx.job.data.prepare import PrepareProgress, prepare
from phalanx.job.data.tars.ingest import index
from phalanx.job.data.tars.open import open_samples
from phalanx.job.data.tars.pack import pack
from tests.job.data.image_folders import contents, write_images, write_tar
from tests.job.data.prepare_cases import write_texts
from tests.job.data.random_tokens import write_tokens

MDS = Path(__file__).parent / "mds"
MEMBERS = [(f"{number}.txt", b"x" * number) for number in range(1, 4)]
Make = Callable[[Path, Path, bool], object]
"""From the inputs, `out` and `force`."""


@pytest.fixture
def inputs(tmp_path: Path, tokenizer: Path, prepared_once: Path) -> Path:
    folder = tmp_path / "inputs"
    write_texts(folder / "texts", files=6, lines=20)
    write_images(folder / "images", each=2)
    (folder / "tars").mkdir()
    write_tar(folder / "tars/a.tar", MEMBERS)
    (folder / "t.json").write_bytes(tokenizer.read_bytes())
    (folder / "data").symlink_to(prepared_once)
    return folder


def megatron(inputs: Path, out: Path, force: bool) -> object:
    asked = ImportAsked(tokenizer=inputs / "data/tokenizer.json")
    return import_megatron([inputs / "data/train-00000"], out, asked, force=force)


def mds_tokens(inputs: Path, out: Path, force: bool) -> object:
    return import_tokens(MDS / "tokens_zstd", out, TokensAsked(column="tokens", tokenizer=inputs / "t.json"), force=force)


COMMANDS: dict[str, Make] = {
    "prepare": lambda inputs, out, force: prepare([inputs / "texts"], out, tokenizer=inputs / "t.json", force=force),
    "pack": lambda inputs, out, force: pack(inputs / "images", out, force=force),
    "index": lambda inputs, out, force: index([inputs / "tars"], out, force=force),
    "import-mds": lambda inputs, out, force: import_samples(MDS / "mixed", out, force=force),
    "import-mds of tokens": mds_tokens,
    "import-megatron": megatron,
}
EXPORT: Make = lambda inputs, out, force: export(inputs / "data", out, force=force)  # noqa: E731  # as the others


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_makes_its_own_result_again_and_replaces_no_other(inputs: Path, tmp_path: Path, name: str) -> None:
    make, out = COMMANDS[name], tmp_path / "out"
    make(inputs, out, False)
    before = contents(out)
    make(inputs, out, False)
    assert contents(out) == before
    for other, stands in COMMANDS.items():
        if other != name:
            with pytest.raises(Conflict, match=r"holds (another data set \(.*give --force to replace it|samples.* itself)"):
                stands(inputs, out, False)
    with pytest.raises(Conflict, match="holds another data set"):
        EXPORT(inputs, out, False)
    assert contents(out) == before
    (out / "mine.txt").write_text("x")
    with pytest.raises(Conflict, match=r"also holds what no data set has \(mine.txt\)"):
        make(inputs, out, False)
    make(inputs, out, True)
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_what_differs_is_named_before_the_work_begins(inputs: Path, tmp_path: Path, tokenizer: Path) -> None:
    texts, out = inputs / "texts", tmp_path / "out"
    prepare([texts], out, vocab_size=300)
    seen: list[PrepareProgress] = []
    asked: list[tuple[dict[str, object], str]] = [
        ({"vocab_size": 301}, "made of texts; vocab_size 300 where 301 is asked"),
        ({"vocab_size": 300, "held_out": 0.1}, r"held_out 0\.05 where 0\.1 is asked"),
        ({"tokenizer": tokenizer}, "tokenizer trained where given is asked"),
        ({"vocab_size": 300, "paths": [inputs / "images"]}, "made of texts; asked is one of images"),
    ]
    for change, said in asked:
        with pytest.raises(Conflict, match=said):
            prepare(**{"paths": [texts], "out": out, "progress": seen.append, **change})  # type: ignore[arg-type]  # a table
    assert not seen, "nothing was read"
    (texts / "0000.txt").write_text("another text\n")
    with pytest.raises(Conflict, match="other sources"):
        prepare([texts], out, vocab_size=300, progress=seen.append)
    assert {item.phase for item in seen} == {"reading"}
    assert not (tmp_path / ".out.preparing").exists()


def test_other_bytes_of_the_same_names_are_another_data_set(inputs: Path, tmp_path: Path) -> None:
    pack(inputs / "images", tmp_path / "packed")
    index([inputs / "tars"], tmp_path / "links")
    before = contents(tmp_path / "packed")
    image = next((inputs / "images").rglob("*.png"))
    image.write_bytes(image.read_bytes() + b"x")
    write_tar(inputs / "tars/a.tar", MEMBERS[:2])
    with pytest.raises(Conflict, match=r"6 samples, made by `pack`; of other contents"):
        pack(inputs / "images", tmp_path / "packed")
    with pytest.raises(Conflict, match=r"3 samples, made by `index`; of other contents"):
        index([inputs / "tars"], tmp_path / "links")
    assert contents(tmp_path / "packed") == before
    assert not (tmp_path / ".packed.preparing").exists()


def test_what_came_to_stand_there_meanwhile_is_not_replaced(inputs: Path, tmp_path: Path) -> None:
    def come(progress: PrepareProgress) -> None:
        if progress.phase.startswith("encoding") and not (tmp_path / "out").exists():
            write_tokens(tmp_path / "out", [100])

    with pytest.raises(Conflict, match="holds another data set"):
        prepare([inputs / "texts"], tmp_path / "out", tokenizer=inputs / "t.json", progress=come)


def test_index_never_removes_a_tar(inputs: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    write_tar(tmp_path / "own/b.tar", MEMBERS)
    index([tmp_path / "own"])
    (tmp_path / "links").mkdir()
    (tmp_path / "links/b.tar").symlink_to(tmp_path / "own/b.tar")
    for paths in ([inputs / "tars"], [tmp_path / "links"]):
        with pytest.raises(Conflict, match=r"holds b\.tar itself"):
            index(paths, tmp_path / "own", force=True)
    assert len(open_samples(tmp_path / "own", verify=True)) == 3


def test_index_in_place_leaves_the_manifest_of_another_command(inputs: Path, tmp_path: Path) -> None:
    pack(inputs / "images", tmp_path / "packed")
    before = contents(tmp_path / "packed")
    with pytest.raises(Conflict, match="holds the data set that `pack` made; give --force"):
        index([tmp_path / "packed"])
    assert contents(tmp_path / "packed") == before
    index([tmp_path / "packed"], force=True)
    assert open_samples(tmp_path / "packed").manifest.parameters == {"made_by": "index"}


def test_index_in_place_drops_no_tar_that_is_there(inputs: Path) -> None:
    write_tar(inputs / "tars/b.tar", MEMBERS)
    index([inputs / "tars"])
    with pytest.raises(Conflict, match=r"a data set with a\.tar in it, too"):
        index([inputs / "tars/b.tar"])
    write_tar(inputs / "tars/c.tar", MEMBERS)
    (inputs / "tars/a.tar").unlink()
    index([inputs / "tars"])
    assert [shard.name for shard in open_samples(inputs / "tars").manifest.shards] == ["b", "c"]
