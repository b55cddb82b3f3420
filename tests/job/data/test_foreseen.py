"""What the ranks of a job would refuse of its data is refused before it waits; what cannot be seen from here is not."""

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.data_asked import ForeseeAsked
from phalanx.core.errors import DataError, SetupError, SpecError
from phalanx.core.training_data import DataSource, MixtureSource
from phalanx.job.data.foreseen import foreseen
from phalanx.job.data.images.open import Look, open_images
from phalanx.job.data.sources import open_sources
from phalanx.job.data.tars.ingest import index
from phalanx.job.data.tars.pack import pack
from tests.job.data.image_folders import write_images, write_tar
from tests.job.data.random_tokens import write_tokens

RECIPE = ForeseeAsked(data=DataSource(), env={}, sequence=64, held_out=16)
SCRIPT = ForeseeAsked(data=DataSource(), env={})


def of(asked: ForeseeAsked, *paths: Path | str, **more: object) -> ForeseeAsked:
    """Of one folder, or of several, named by their last parts."""
    sources = {str(path).rpartition("/")[2]: MixtureSource(path=str(path)) for path in paths}
    data = DataSource(path=str(paths[0])) if len(paths) == 1 else DataSource(sources=sources)
    return replace(asked, data=replace(data, **more))  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokens(tmp_path / "web", [5_000, 700], held_out=64 * 16 + 1)
    return tmp_path / "web"


def refused(asked: ForeseeAsked) -> DataError:
    with pytest.raises(DataError) as caught:
        foreseen(asked)
    return caught.value


def test_good_data_is_let_pass_without_a_word(folder: Path, tmp_path: Path) -> None:
    write_tokens(tmp_path / "code", [65], held_out=0)
    assert foreseen(of(RECIPE, folder)) == foreseen(of(SCRIPT, folder)) == ()
    assert foreseen(of(RECIPE, folder, tmp_path / "code")) == ()  # what is held out is counted over all sources


def test_a_source_with_another_tokenizer_is_refused_in_the_words_of_the_ranks(folder: Path, tmp_path: Path) -> None:
    write_tokens(tmp_path / "code", [500], vocab_size=40_000)
    asked = of(RECIPE, folder, tmp_path / "code")
    with pytest.raises(DataError) as of_ranks:
        open_sources(asked.data)
    error = refused(asked)
    assert (error.field, str(error)) == ("tokenizer of code", str(of_ranks.value))
    assert "prepare all sources with one" in error.fix
    assert foreseen(of(SCRIPT, folder, tmp_path / "code")) == ()  # which may have a model for each


@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_too_little_held_out_is_refused(tmp_path: Path, packing: str) -> None:
    folder = tmp_path / "web"
    write_tokens(folder, [5_000], held_out=64 * 15 + 1)
    error = refused(of(RECIPE, folder, packing=packing))
    assert (error.field, error.value) == ("held-out samples", 15)
    assert "one held-out batch takes 16 samples of 64 tokens; prepare the data again with `--held-out 0.26`" in error.fix
    assert foreseen(replace(of(RECIPE, folder, packing=packing), held_out=15)) == ()


def test_nothing_held_out_is_another_mistake_than_too_short_a_split(tmp_path: Path) -> None:
    for name, held_out in (("none", 0), ("short", 30)):
        write_tokens(tmp_path / name, [5_000], held_out=held_out)
    assert refused(of(RECIPE, tmp_path / "none")).sentence().startswith("held-out tokens is 0: nothing is held out")
    assert "one held-out batch takes 16 samples of 64 tokens" in refused(of(RECIPE, tmp_path / "short")).fix
    assert foreseen(of(SCRIPT, tmp_path / "none")) == ()
    assert foreseen(replace(of(RECIPE, tmp_path / "none"), held_out=0)) == (), "it measures no held-out loss"


def test_a_source_too_short_for_one_row_is_named(folder: Path, tmp_path: Path) -> None:
    write_tokens(tmp_path / "code", [64])
    error = refused(of(RECIPE, folder, tmp_path / "code"))
    assert (error.field, error.value) == ("train samples of code", 0)
    assert f"not one row of 64 tokens in {tmp_path / 'code'}" in error.fix
    assert foreseen(of(RECIPE, folder, tmp_path / "code", packing="best_fit")) == ()  # whose rows may be padded


def test_samples_are_for_scripts_and_for_recipes_of_images(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 2)
    pack(tmp_path / "images", tmp_path / "tars", 2**20)
    error = refused(of(RECIPE, tmp_path / "tars"))
    assert (error.field, error.value) == ("data.path", str(tmp_path / "tars"))
    assert error.fix.startswith("holds samples, such as images, and the recipe reads tokens")
    assert foreseen(of(SCRIPT, tmp_path / "tars")) == ()
    of_images = replace(SCRIPT, images=4, held_out=4)
    assert foreseen(of(of_images, tmp_path / "tars")) == ()
    assert "one held-out batch takes 5 samples" in refused(of(replace(of_images, held_out=5), tmp_path / "tars")).fix
    assert "some are to be trained on" in refused(of(replace(of_images, images=6), tmp_path / "tars")).fix
    write_tokens(tmp_path / "web", [100])
    assert refused(of(of_images, tmp_path / "web")).fix.startswith("holds no samples, and the recipe reads images")
    with pytest.raises(SetupError):
        foreseen(of(of_images, "ftp://host/tars"))


IMAGES = replace(SCRIPT, images=1, held_out=1)


@pytest.mark.parametrize("url", ["{}", "file://{}"])
def test_samples_that_no_recipe_of_images_reads_are_refused_in_the_words_of_the_ranks(tmp_path: Path, url: str) -> None:
    members = [("a.png", b"x"), ("a.cls", b"0"), ("b.tif", b"x"), ("b.cls", b"0"), ("c.bmp", b"x"), ("c.cls", b"1")]
    write_tar(tmp_path / "a.tar", members)
    index([tmp_path / "a.tar"])
    asked, look = of(IMAGES, url.format(tmp_path), on_bad_data="stop"), Look(side=4, area_min=1.0, flip=0.0, seed=0)
    error = refused(replace(asked, classes=2))
    assert error.field == "data.path" and error.fix.startswith("2 of 3 samples have no image that is read (jpg, jpeg, png, webp)")
    assert "what else there is: bmp, tif; convert them" in error.fix
    with pytest.raises(DataError) as of_ranks:
        open_images(asked.data, look, 2, 1, 1)
    assert str(of_ranks.value) == str(error)
    spared = replace(asked, data=replace(asked.data, on_bad_data="quarantine", bad_data_max=0.9), classes=2)
    assert foreseen(spared) == (), "others stand in for so many"
    assert "2 of 3" in refused(replace(spared, data=replace(spared.data, bad_data_max=0.1))).fix


def test_samples_without_a_class_and_a_model_of_too_few_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("a.png", b"x"), ("a.cls", b"0"), ("b.png", b"x"), ("b.cls", b"1")])
    index([tmp_path / "a.tar"])
    assert foreseen(of(replace(IMAGES, classes=2), tmp_path)) == ()
    with pytest.raises(SpecError, match=r"hyperparameters\.classes: 0: write how many there are: the data does not name them"):
        foreseen(of(IMAGES, tmp_path))
    index([tmp_path / "a.tar"], classes=["cat", "dog"], force=True)
    assert foreseen(of(IMAGES, tmp_path)) == ()
    with pytest.raises(SpecError, match=r"hyperparameters\.classes: 1: the data has 2"):
        foreseen(of(replace(IMAGES, classes=1), tmp_path))
    (tmp_path / "b").mkdir()
    write_tar(tmp_path / "b" / "b.tar", [("a.png", b"x"), ("a.cls", b"0"), ("b.png", b"x")])
    index([tmp_path / "b" / "b.tar"])
    assert refused(of(replace(IMAGES, classes=1), tmp_path / "b")).fix.startswith("1 of 2 samples have no field cls")


def test_what_is_no_data_and_what_is_damaged_is_refused_by_the_field_of_its_source(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").touch()
    error = refused(of(RECIPE, folder, tmp_path / "raw"))
    assert (error.field, error.value) == ("data.sources.raw.path", str(tmp_path / "raw"))
    assert "but a.txt; if that is text, run `phalanx data prepare" in error.fix
    for name in ("train-00001.xxh3", "train-00000.bin"):
        (folder / name).unlink()
        assert refused(of(SCRIPT, folder)).field == name


def test_indexes_are_needed_where_documents_are_told_apart(folder: Path) -> None:
    index = folder / "train-00001.idx"
    index.write_bytes(index.read_bytes()[:-1])
    assert foreseen(of(RECIPE, folder)) == ()
    assert refused(of(RECIPE, folder, attention="document")).field == index.name


def test_what_is_not_here_may_be_on_the_nodes(folder: Path, tmp_path: Path) -> None:
    (said,) = foreseen(of(RECIPE, tmp_path / "absent"))
    absent = (
        f"data.path {tmp_path / 'absent'} is not there on this machine ({tmp_path} has no absent); if the machines of its ranks"
    )
    assert said == f"{absent} have it, all is well"
    many = foreseen(of(RECIPE, folder, *(tmp_path / f"absent{number}" for number in range(5))))
    assert [one.partition(" ")[0] for one in many[:3]] == [f"data.sources.absent{number}.path" for number in range(3)]
    assert many[3:] == ("2 more of its sources could not be looked at from here",)


def test_a_source_that_is_not_seen_may_hold_what_the_others_lack(folder: Path, tmp_path: Path) -> None:
    asked = replace(of(RECIPE, folder, tmp_path / "absent"), held_out=17)
    assert len(foreseen(asked)) == 1
    assert refused(replace(of(RECIPE, folder), held_out=17)).field == "held-out samples"


@pytest.mark.parametrize("name", ["manifest.json", "train-00001.bin"])
def test_what_this_user_may_not_read_is_not_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The error comes from the system's call, as root may read everything."""
    stat = os.stat

    def refuse(path: object, **more: object) -> os.stat_result:
        if str(path).endswith(name):
            raise PermissionError(13, "Permission denied")
        return stat(path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", refuse)
    (said,) = foreseen(of(RECIPE, folder))
    assert "could not be looked at from here, so its ranks do: it" in said and "Permission denied" in said


def test_a_manifest_of_others_is_a_scripts_own_affair(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"files": []}')
    (said,) = foreseen(of(SCRIPT, tmp_path))
    assert said.endswith("its manifest.json is none of ours")
    assert "is not a manifest of ours" in refused(of(RECIPE, tmp_path)).fix


@pytest.fixture
def silent() -> Iterator[dict[str, str]]:
    """The environment of a store that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "here"}


def test_a_store_that_does_not_answer_is_not_waited_for(silent: dict[str, str], folder: Path) -> None:
    """Also where the job itself says which store it is."""
    began = time.monotonic()
    (said,) = foreseen(of(replace(RECIPE, env=silent), folder, "s3://bucket/far"), {}, patience_s=0.3)
    assert time.monotonic() - began < 60
    assert said.startswith("data.sources.far.path s3://bucket/far could not be looked at from here, so its ranks do: ")


def test_all_stores_together_are_not_waited_for_longer_than_one(
    silent: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.job.data.foreseen._AT_ONCE", 1)
    said = foreseen(of(RECIPE, folder, *(f"s3://bucket/far{number}" for number in range(3))), silent, patience_s=0.2)
    assert said[2].endswith("s3://bucket/far2 could not be looked at from here, so its ranks do: its store has not answered yet")


def test_what_is_wrong_with_a_store_from_here_may_be_right_on_the_nodes() -> None:
    """Its address is that of the job's own environment."""
    (said,) = foreseen(of(replace(RECIPE, env={"AWS_ENDPOINT_URL": "http://store.example"}), "s3://bucket/far"), {})
    assert "AWS_ENDPOINT_URL is 'http://store.example': would send data readable" in said


def test_a_url_that_names_no_place_is_refused_of_a_recipe(folder: Path) -> None:
    with pytest.raises(SetupError) as caught:
        foreseen(of(RECIPE, folder, "s4://bucket/far"))
    assert caught.value.field == "data.sources.far.path"
    assert len(foreseen(of(SCRIPT, "s4://bucket/far"))) == 1


def test_no_shard_is_read(folder: Path) -> None:
    """A shard of the right size and other contents is for the ranks to find."""
    shard = folder / "train-00000.bin"
    shard.write_bytes(bytes(shard.stat().st_size))
    assert foreseen(of(RECIPE, folder)) == ()
