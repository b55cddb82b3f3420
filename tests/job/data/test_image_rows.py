"""Images as rows: what a row is of depends on seed, epoch and sample alone, whoever asks for it, and nothing bad becomes one."""

import io
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from phalanx.core.errors import DataError, SpecError
from phalanx.core.training_data import Blocks, DataSource
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.draws import batch
from phalanx.job.data.images import boxes
from phalanx.job.data.images.decode import LARGE, decoded, label_of
from phalanx.job.data.images.open import ImageData, Look, open_images
from phalanx.job.data.images.rows import contents, words_of
from phalanx.job.data.order import rank_slice
from phalanx.job.data.sound import BadData, SoundOrder, tried
from phalanx.job.data.stream import BatchStream
from phalanx.job.data.tars.ingest import index
from phalanx.job.data.tars.open import Sample
from phalanx.job.data.tars.pack import pack
from phalanx.job.train.classes import ImageClasses
from tests.job.data.image_folders import write_images, write_tar

LOOK = Look(side=5, area_min=0.3, flip=0.5, seed=3)
HELD_OUT = 8
Rows = NDArray[np.int64]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("images")
    write_images(folder / "photos", each=12, side=20)
    return pack(folder / "photos", folder / "data")


def opened(folder: Path, look: Look = LOOK, threads: int = 2, **asked: Any) -> ImageData:
    return open_images(DataSource(path=str(folder), **asked), look, 0, HELD_OUT, threads)


def numbers(data: ImageData, epoch: int, samples: Sequence[int]) -> NDArray[np.int64]:
    return epoch * len(data.samples) + np.array(samples, dtype=np.int64)


def image(encoded: str, pixels: NDArray[Any]) -> bytes:
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, encoded)
    return written.getvalue()


def plain_png(width: int, height: int) -> bytes:
    written = io.BytesIO()
    Image.new("1", (width, height)).save(written, "PNG")
    return written.getvalue()


def pixels(rows: Rows, side: int) -> NDArray[np.uint8]:
    return rows[:, 2:].copy().view(np.uint8)[:, : 3 * side * side].reshape(-1, 3, side, side)


def test_a_row_is_a_function_of_seed_epoch_and_sample(folder: Path) -> None:
    data, other = opened(folder), opened(folder, threads=1)
    rows = data.gather("train", numbers(data, 4, range(20)), 0)
    assert rows.shape == (20, words_of(5)) and rows.dtype == np.int64
    backwards = other.gather("train", numbers(data, 4, range(20)[::-1]), 0)
    assert (backwards[::-1] == rows).all()
    labels = [int(data.samples.read(sample).fields["cls"]) for sample in range(20)]
    assert rows[:, 0].tolist() == labels and (contents(rows) == data.samples.contents(range(20))).all()
    for changed in (data.gather("train", numbers(data, 5, range(20)), 0), opened(folder, replace(LOOK, seed=4)).gather(
        "train", numbers(data, 4, range(20)), 0)):  # fmt: skip
        assert (changed[:, :2] == rows[:, :2]).all() and (changed[:, 2:] != rows[:, 2:]).any(axis=1).all()


def test_ranks_read_their_part_of_what_one_rank_reads(folder: Path) -> None:
    data = opened(folder)
    order = data.order(0, seed=1, global_batch=6)
    assert order.sizes.tolist() == [36 - HELD_OUT]
    step_numbers = [data.numbers(batch(order, step), "train", 0) for step in range(9)]
    with BatchStream(data, "train", 1, step_numbers.__getitem__, 0, 9) as stream:
        whole = [rows.copy() for rows in stream]
    for ranks in (2, 3):
        parts = [data.gather("train", rank_slice(step_numbers[7], rank, ranks), 0) for rank in range(ranks)]
        assert (np.concatenate(parts) == whole[7]).all()
    source, sample = data.drawn(step_numbers[7], "train", 0)
    assert not source.any() and (sample == batch(order, 7).sample).all() and sample.max() < 36 - HELD_OUT


def test_held_out_images_are_the_last_ones_whole_and_the_same_in_each_epoch(tmp_path: Path) -> None:
    photo = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    write_tar(
        tmp_path / "a.tar",
        [(f"{n}.{name}", value) for n in range(3) for name, value in (("png", image("PNG", photo)), ("cls", b"0"))],
    )
    index([tmp_path / "a.tar"])
    data = open_images(DataSource(path=str(tmp_path)), replace(LOOK, side=4), 1, 1, 1)
    assert data.num_samples("train", 0) == 2 and data.num_samples("held_out", 0) == 1
    (row,) = data.gather("held_out", np.zeros(1, dtype=np.int64), 0)
    assert (pixels(row[None], 4)[0] == photo[:, 1:5].transpose(2, 0, 1)).all()
    assert contents(row[None])[0] == data.samples.read(2).content
    images, labels = ImageClasses(side=4, normalise="half", smoothing=0.0).parts(torch.from_numpy(row[None]))
    assert labels.tolist() == [0] and torch.allclose(
        images[0] * 127.5 + 127.5, torch.from_numpy(pixels(row[None], 4)[0]).float(), atol=1e-4
    )
    data.check_held_out(0, 1)
    with pytest.raises(DataError, match="one held-out batch takes 2 samples"):
        data.check_held_out(0, 2)


def test_training_images_are_cut_and_mirrored() -> None:
    found = [boxes.drawn(40, 30, 0.25, np.random.default_rng(seed)) for seed in range(300)]
    areas = [(right - left) * (bottom - top) / 1200 for left, top, right, bottom in found]
    ratios = [(right - left) / (bottom - top) for left, top, right, bottom in found]
    assert all(0 <= left < right <= 40 and 0 <= top < bottom <= 30 for left, top, right, bottom in found)
    assert 0.25 <= min(areas) < 0.3 and 0.85 < max(areas) <= 1 and 0.74 < min(ratios) < 0.8 and 1.28 < max(ratios) < 1.34
    assert boxes.drawn(900, 3, 0.9, np.random.default_rng(0)) == boxes.middle(900, 3) == (448.5, 0, 451.5, 3)
    assert boxes.drawn(40, 30, 1.0, np.random.default_rng(0)) == (5, 0, 35, 30)


def test_a_sample_without_an_image_or_a_class_is_told_by_its_key() -> None:
    """Where the counts of the data's fields do not tell, as other samples have several images."""
    sample = Sample(number=0, key="one", fields={"txt": b"words"})
    with pytest.raises(
        DataError, match=r"fields of sample 0: 'one': has txt, and no image .*; convert it, leave it out of the data"
    ):
        decoded(sample, 3, boxes.middle)
    with pytest.raises(DataError, match=r"fields of sample 0: 'one': has no field cls"):
        label_of(sample, 2)


def test_half_of_them_are_mirrored(folder: Path) -> None:
    look = replace(LOOK, side=20, area_min=1.0)
    data, mirrored = opened(folder, look), opened(folder, replace(look, flip=1.0))
    rows, back = (one.gather("train", numbers(one, 0, range(28)), 0) for one in (data, mirrored))
    same = [(row == other).all() for row, other in zip(pixels(rows, 20), pixels(back, 20), strict=True)]
    assert 5 < sum(same) < 23
    turned = [(row[:, :, ::-1] == other).all() for row, other in zip(pixels(rows, 20), pixels(back, 20), strict=True)]
    assert [not one for one in turned] == same


def test_damage_is_told_of_every_sample_and_held_out_ones_have_no_part_in_the_order(folder: Path, tmp_path: Path) -> None:
    data = opened(folder)
    asked = data.samples.asked([3, 30])
    tar = bytearray((folder / data.samples.manifest.shards[0].tar.name).read_bytes())
    for one in asked:
        tar[one.places["png"].offset + 40] ^= 1
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(tar if path.suffix == ".tar" else path.read_bytes())
    broken = opened(tmp_path)
    with pytest.raises(BadBlock) as told:
        broken.gather("train", numbers(broken, 1, [2, 3, 4]), 0)
    (block,) = told.value.blocks
    assert broken.touching(block, "train", 0) == {"data": [(3, 4)]}
    assert broken.touching(replace(block, block=30), "train", 0) == {"data": []}
    assert broken.touching(Block(data="other", shard=block.shard, block=3), "train", 0) == {"data": []}
    with pytest.raises(BadBlock):
        broken.gather("held_out", np.array([2]), 0)


def test_others_stand_in_for_what_is_no_image_the_same_on_every_rank(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good, bad = plain_png(9, 9), {2: b"no image", 5: plain_png(9, 9)[:-20]}
    members = [
        (f"{number}.{name}", value) for number in range(12) for name, value in (("png", bad.get(number, good)), ("cls", b"0"))
    ]
    write_tar(tmp_path / "a.tar", members)
    index([tmp_path / "a.tar"])
    data = open_images(DataSource(path=str(tmp_path)), LOOK, 1, 2, 2)
    order = data.order(0, seed=1, global_batch=10)
    numbers = data.numbers(batch(order, 0), "train", 0)  # a whole epoch
    met = [tried(partial(data.gather, "train", rank_slice(numbers, rank, 2), 0))[1] for rank in range(2)]
    with pytest.raises(BadBlock) as whole:
        data.gather("train", numbers, 0)
    told = sorted({block for one in met if one is not None for block in one.blocks})
    assert [one.block for one in told] == [2, 5] and told == sorted(whole.value.blocks)
    policy = BadData(policy="quarantine", share_max=0.5, agree=lambda blocks: told)
    sound = [SoundOrder(order, partial(data.touching, split="train", sequence=0), policy, 2) for _ in range(2)]
    assert all(one.changed_by(error, 0) for one, error in zip(sound, met, strict=True))
    draws = [batch(one.order, 0).sample.tolist() for one in sound]
    assert draws[0] == draws[1] and not {2, 5} & set(draws[0]) and len(draws[0]) == 10
    data.gather("train", data.numbers(batch(sound[0].order, 0), "train", 0), 0)
    assert all(one.sentence() in caplog.text and "cannot be decoded as PNG" in one.fix for one in met if one is not None)
    with pytest.raises(BadBlock):
        SoundOrder(order, partial(data.touching, split="train", sequence=0)).changed_by(whole.value, 0)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"png": b"no image", "cls": b"0"}, "cannot be decoded as PNG"),
        ({"jpg": b"GIF89a" + bytes(30), "cls": b"0"}, "cannot be decoded as JPEG"),
        ({"png": None, "cls": b"2"}, "the model tells 2 apart"),
        ({"png": None, "cls": b"x"}, "the model tells 2 apart"),
        ({"png": "large", "cls": b"0"}, "81000000 pixels, more than 67108864"),
    ],
)
def test_what_is_no_image_of_a_class_is_refused_by_its_name(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    made = {None: (3, 3), "large": (9000, 9000)}
    given = {name: plain_png(*made[value]) if value in made else value for name, value in fields.items()}
    write_tar(tmp_path / "a.tar", [(f"one.{name}", value) for name, value in given.items()])
    index([tmp_path / "a.tar"])
    data = open_images(DataSource(path=str(tmp_path)), LOOK, 2, 0, 1)
    with pytest.raises(DataError, match=told) as error:
        data.gather("train", np.zeros(1, dtype=np.int64), 0)
    assert error.value.value in ("one", "2", "x")


def test_jpeg_grey_and_transparent_images_become_rgb(tmp_path: Path) -> None:
    grey, clear = np.full((9, 9), 200, dtype=np.uint8), np.full((9, 9, 4), 90, dtype=np.uint8)
    members = [("a.jpg", image("JPEG", grey)), ("a.cls", b"0"), ("b.png", image("PNG", clear)), ("b.cls", b"1")]
    write_tar(tmp_path / "a.tar", members, tarfile.PAX_FORMAT)
    index([tmp_path / "a.tar"])
    rows = open_images(DataSource(path=str(tmp_path)), LOOK, 2, 0, 1).gather("train", np.arange(2), 0)
    assert pixels(rows, 5)[0].min() >= 199 and (pixels(rows, 5)[1] == 90).all() and rows[:, 0].tolist() == [0, 1]


def looked_at(encoded: str, data: bytes, side: int = 3, box: Any = boxes.middle) -> NDArray[np.uint8]:
    return decoded(Sample(number=0, key="one", fields={encoded.lower(): data}), side, box)


def test_grey_of_16_bits_is_scaled_and_not_cut_off() -> None:
    deep = np.array([[0, 200, 30_000], [255, 256, 65_535], [32_768, 1_000, 60_000]], dtype=np.uint16)
    assert (looked_at("PNG", image("PNG", deep)) == deep >> 8).all()


@pytest.mark.parametrize("encoded", ["JPEG", "PNG", "WEBP"])
def test_an_image_is_turned_as_its_camera_was_held(encoded: str) -> None:
    """As Pillow does it, of which only a part is used."""
    seen = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 16, 3), dtype=np.uint8))
    found = []
    for orientation in range(1, 9):
        exif, written = Image.Exif(), io.BytesIO()
        exif[ExifTags.Base.Orientation] = orientation
        seen.save(written, encoded, exif=exif)
        with Image.open(written) as opened:
            upright = image("PNG", np.asarray(ImageOps.exif_transpose(opened)))
        found.append(looked_at(encoded, written.getvalue(), 8))
        assert (found[-1] == looked_at("PNG", upright, 8)).all(), orientation
    assert len({pixels.tobytes() for pixels in found}) == 8


def test_exif_that_nobody_can_read_turns_nothing() -> None:
    plain, text, written = np.full((3, 3, 3), 70, dtype=np.uint8), PngInfo(), io.BytesIO()
    text.add_text("Raw profile type exif", "\nexif\n4\nno digits")
    Image.fromarray(plain).save(written, "PNG", pnginfo=text)
    assert (looked_at("PNG", written.getvalue()) == 70).all()


def test_of_an_image_that_moves_the_first_frame_is_looked_at() -> None:
    frames, written = [Image.new("RGB", (3, 3), (shade, shade, shade)) for shade in (50, 150, 250)], io.BytesIO()
    frames[0].save(written, "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert (looked_at("WEBP", written.getvalue()) == 50).all()


def test_colour_is_not_copied_and_large_images_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = []

    def box(width: int, height: int) -> boxes.Box:
        alone.append(LARGE.locked())
        return boxes.middle(width, height)

    monkeypatch.setattr("phalanx.job.data.images.decode.LARGE_PIXELS", 12)
    for width in (3, 4):
        looked_at("PNG", plain_png(width, 4), 3, box)
    assert alone == [False, True] and not LARGE.locked()
    monkeypatch.delattr(Image.Image, "convert")
    assert (looked_at("PNG", image("PNG", np.full((4, 4, 3), 9, dtype=np.uint8))) == 9).all()


def test_too_little_memory_is_no_fault_of_the_image() -> None:
    def box(width: int, height: int) -> boxes.Box:
        raise MemoryError

    with pytest.raises(MemoryError):
        looked_at("PNG", plain_png(3, 3), 3, box)


def test_classes_are_the_data_s_or_the_job_s_and_some_samples_are_left_to_train_on(folder: Path, tmp_path: Path) -> None:
    asked = DataSource(path=str(folder))
    assert opened(folder).classes == 3 and open_images(asked, LOOK, 9, HELD_OUT, 1).classes == 9
    with pytest.raises(SpecError, match="the data has 3"):
        open_images(asked, LOOK, 2, HELD_OUT, 1)
    with pytest.raises(DataError, match="some are to be trained on"):
        open_images(asked, LOOK, 0, 36, 1)
    write_tar(tmp_path / "a.tar", [("one.png", b"x"), ("one.cls", b"0")])
    index([tmp_path / "a.tar"])
    with pytest.raises(SpecError, match="the data does not name them"):
        open_images(DataSource(path=str(tmp_path)), LOOK, 0, 0, 1)


def test_ranks_tell_apart_how_they_read(folder: Path) -> None:
    assert opened(folder).agreed == opened(folder).manifest_hash
    assert opened(folder, shuffle=Blocks(block_samples=4, window_blocks=2)).agreed != opened(folder).agreed
