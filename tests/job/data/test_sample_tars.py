"""Samples in tars: packed or found there, read straight from them, and every damage named."""

import ctypes
import errno
import json
import mmap
import os
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from phalanx.core.errors import Conflict, DataError
from phalanx.job.data.bad_block import BadBlock
from phalanx.job.data.manifest import MANIFEST
from phalanx.job.data.open import open_data
from phalanx.job.data.tars import folder as folders
from phalanx.job.data.tars import open as opened
from phalanx.job.data.tars.ingest import index
from phalanx.job.data.tars.open import SampleData, open_samples
from phalanx.job.data.tars.pack import pack
from phalanx.job.data.tars.show import sample_summary
from phalanx.job.data.tars.writer import TarWriter
from tests.job.data.image_folders import CLASSES, class_of, contents, write_images, write_tar
from tests.job.data.random_tokens import write_tokens

PAIRS = [(f"{number:04d}.{field}", bytes([number]) * (number * 700)) for number in range(1, 30) for field in ("jpg", "cls")]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    write_images(tmp_path / "images")
    pack(tmp_path / "images", tmp_path / "data")
    return tmp_path / "data"


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_every_image_is_read_as_it_was_with_its_class(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    data = open_samples(pack(tmp_path / "images", tmp_path / "data"))
    samples = [data.read(number) for number in range(len(data))]
    assert {sample.key: sample.fields["png"] for sample in samples} == images
    assert [data.classes[class_of(sample)] for sample in samples] == [sample.key.split("/")[0] for sample in samples]
    assert data.classes == CLASSES and data.fields == ("cls", "png") and data.manifest.samples == 60
    assert len({class_of(sample) for sample in samples[:10]}) == 3, "neighbours are of different classes"
    assert [sample.key for sample in samples] == [data.key(number) for number in range(len(data))]
    assert data.read(7, ["cls"]).fields == {"cls": samples[7].fields["cls"]}


def test_the_same_images_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_images(tmp_path / name / "images")
        pack(tmp_path / name / "images", tmp_path / name / "data")
    assert contents(tmp_path / "one/data") == contents(tmp_path / "two/data")


def test_an_index_made_of_tars_is_the_one_made_while_they_were_written(packed: Path) -> None:
    before, classes = contents(packed, [MANIFEST]), open_samples(packed).classes
    index([packed], force=True)
    assert contents(packed, [MANIFEST]) == before
    assert open_samples(packed).classes == classes, "which the tars do not say"


def test_images_beside_others_are_counted_and_keys_stay_apart(tmp_path: Path) -> None:
    write_images(tmp_path / "images", each=1)
    cat = tmp_path / "images/cat"
    (cat / "Thumbs.db").write_bytes(b"x")
    (cat / "sub.set").mkdir()
    (cat / "sub.set/a.b.png").write_bytes(b"one")
    (cat / "sub.set/a_b.PNG").write_bytes(b"two")
    (cat / "sub.set/a_b.jpg").write_bytes(b"three")
    (cat / "gone.png").symlink_to("nowhere")
    pack(tmp_path / "images", tmp_path / "data")
    data = open_samples(tmp_path / "data")
    assert {key for number in range(len(data)) if (key := data.key(number)).startswith("cat/sub")} == {
        "cat/sub.set/a_b", "cat/sub.set/a_b_2", "cat/sub.set/a_b_3",
    }  # fmt: skip
    assert data.manifest.skipped == {"other_file": 1, "unreadable": 1}
    assert data.manifest.fields["jpg"].samples == 1


def test_a_folder_without_classes_or_a_class_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match="make one for each class"):
        pack(tmp_path / "images", tmp_path / "data")
    write_images(tmp_path / "images/")
    (tmp_path / "images/fox").mkdir()
    with pytest.raises(DataError, match=r"fox.*has no file that ends in"):
        pack(tmp_path / "images", tmp_path / "data")
    assert not (tmp_path / "data").exists() and not (tmp_path / ".data.preparing").exists()


def test_shards_end_after_the_sample_that_fills_them(tmp_path: Path) -> None:
    with TarWriter(tmp_path, 2**20) as writer:
        for number in range(9):
            writer.add(f"{number}", {"bin": bytes(300_000)})
        manifest = writer.finish((), {}, {})
    assert [shard.samples for shard in manifest.shards] == [4, 4, 1]
    for shard in manifest.shards:
        with tarfile.open(tmp_path / shard.tar.name) as archive:
            assert [member.size for member in archive] == [300_000] * shard.samples


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_others_are_read_where_they_lie(tmp_path: Path, form: int) -> None:
    write_tar(tmp_path / "b-000000.tar", PAIRS[20:], form)
    write_tar(tmp_path / "a-000000.tar", PAIRS[:20], form)
    index([tmp_path])
    data = open_samples(tmp_path)
    samples = [data.read(number) for number in range(len(data))]
    assert [(sample.key, dict(sample.fields)) for sample in samples] == [
        (f"{number:04d}", dict.fromkeys(("jpg", "cls"), bytes([number]) * (number * 700))) for number in range(1, 30)
    ]
    with pytest.raises(IndexError):
        data.read(29)
    with pytest.raises(DataError, match=r"0001 in a-000000.tar has only cls, jpg"):
        data.read(0, ["json"])


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_names_with_many_dots(tmp_path: Path, form: int) -> None:
    folder = "deep.er/" * 30
    write_tar(tmp_path / "x.tar", [(f"./{folder}żółw.SEG.png", b"1"), (f"{folder}żółw.cls", b""), ("plain.json", b"{}")], form)
    index([tmp_path / "x.tar"])
    data = open_samples(tmp_path)
    assert data.read(0) == opened.Sample(0, f"{folder}żółw", {"seg.png": b"1", "cls": b""})
    assert data.read(1).key == "plain" and data.fields == ("cls", "json", "seg.png")


def test_the_number_of_processes_changes_no_byte(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for number in range(5):
            write_tar(tmp_path / name / f"{number}.tar", PAIRS[number * 8 : number * 8 + 8])
    seen: list[tuple[int, int]] = []
    index([tmp_path / "one"], progress=lambda *at: seen.append(at))
    index([tmp_path / "two"], processes=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(seen) == 5 and seen[-1][0] == seen[-1][1]


def test_a_folder_of_links_leaves_the_tars_alone(tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    for name in ("train-0", "train-1", "val-0"):
        write_tar(tmp_path / f"tars/{name}.tar", PAIRS)
    index([str(tmp_path / "tars/train-*.tar")], tmp_path / "train", classes=["cat", "dog"])
    assert sorted(path.name for path in (tmp_path / "tars").iterdir()) == ["train-0.tar", "train-1.tar", "val-0.tar"]
    summary = sample_summary(tmp_path / "train")
    assert (summary.samples, summary.shards, summary.classes, summary.first) == (58, 2, ("cat", "dog"), "0001")
    before = contents(tmp_path / "train")
    index([tmp_path / "train"])
    assert contents(tmp_path / "train") == before and len(list((tmp_path / "tars").iterdir())) == 3, (
        "links are indexed where they lie"
    )
    index([tmp_path / "tars/val-0.tar"], tmp_path / "train", force=True)
    assert sample_summary(tmp_path / "train").samples == 29


def test_what_cannot_be_indexed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"hold no file that ends in \.tar"):
        index([tmp_path / "a"])
    write_tar(tmp_path / "a/x.tar", PAIRS[:2])
    write_tar(tmp_path / "b/y.tar", PAIRS[:2])
    with pytest.raises(DataError, match="--out"):
        index([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(DataError, match="copy the tars here, index them, then `phalanx data push`"):
        index(["s3://bucket/tars"])
    (tmp_path / "a" / MANIFEST).write_text('{"name": "a web page"}')
    with pytest.raises(Conflict, match="of something else"):
        index([tmp_path / "a"])
    write_tar(tmp_path / "b/x.tar", PAIRS[:2])
    with pytest.raises(DataError, match="has the name of another one"):
        index([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    (tmp_path / "b/x.tar").rename(tmp_path / "b/x.tar.gz")
    with pytest.raises(DataError, match="is compressed"):
        index([tmp_path / "b"])
    (tmp_path / "b/x.tar.gz").rename(tmp_path / "b/x y.tar")
    with pytest.raises(DataError, match="a name that no shard may have"):
        index([tmp_path / "b"])


def test_a_flipped_byte_is_named_by_shard_key_field_and_offset(packed: Path) -> None:
    data = open_samples(packed)
    tar = packed / "samples-00000.tar"
    offset = tar.read_bytes().index(data.read(20).fields["png"])
    damage(tar, offset + 10)
    with pytest.raises(DataError, match=rf"samples-00000.tar.*{data.key(20)}\.png.*bytes at {offset} of.*damaged"):
        data.read(20)
    assert [data.read(number).number for number in range(60) if number != 20]
    assert data.read(20, ["cls"]).fields, "another field of it is whole"
    with pytest.raises(DataError, match=r"samples-00000.tar.*SHA-256.*data index"):
        open_samples(packed, verify=True)


def test_a_damaged_index_a_cut_tar_and_a_missing_one_are_named(packed: Path) -> None:
    damage(packed / "samples-00000.index", 100)
    with pytest.raises(DataError, match=r"samples-00000.index.*SHA-256"):
        open_samples(packed).read(0)
    tar = packed / "samples-00000.tar"
    held = open_samples(packed)
    os.truncate(tar, 5000)
    with pytest.raises(DataError, match="5000 bytes"):
        open_samples(packed)
    del held
    tar.unlink()
    with pytest.raises(DataError, match=r"No such file.*phalanx data index"):
        open_samples(packed)


def test_a_tar_that_is_cut_while_it_is_read_is_named(packed: Path) -> None:
    data = open_samples(packed)
    data.read(0)
    os.truncate(packed / "samples-00000.tar", 2000)
    with pytest.raises(DataError, match="should have"):
        data.read(59)


def test_a_place_that_the_disk_cannot_read_is_a_bad_sample_and_another_error_is_none(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, real = open_samples(packed), os.pread
    bad = data.asked([20])[0].places["png"].offset
    code = errno.EIO

    def failing(descriptor: int, size: int, offset: int) -> bytes:
        if offset == bad:
            raise OSError(code, os.strerror(code))
        return real(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(BadBlock, match="damaged, also when read again: the disk fails") as caught:
        list(data.read_all(range(60)))
    assert [block.block for block in caught.value.blocks] == [20] and data.read(21).number == 21
    code = errno.ESTALE
    with pytest.raises(DataError, match="cannot be read") as other:
        data.read(20)
    assert not isinstance(other.value, BadBlock)


def pages_in_memory(path: Path) -> bytes:
    """Of each page of a file, whether the page cache has it: mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, dtype=np.uint8)
        found = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        failed = libc.mincore(ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(mapped)), found)
        del view
    if failed:
        pytest.skip(f"mincore: {os.strerror(ctypes.get_errno())}")
    return bytes(page & 1 for page in found)


@pytest.mark.parametrize("files_max", [64, 0])
def test_a_damaged_field_is_read_again_from_the_disk_however_small_it_is(
    packed: Path, monkeypatch: pytest.MonkeyPatch, files_max: int
) -> None:
    """None of the pages in which it lies is left from before, nor where other files were opened meanwhile."""
    monkeypatch.setattr(folders, "_FILES_MAX", files_max)
    data, tar, real = open_samples(packed), packed / "samples-00000.tar", os.pread
    with tar.open("rb") as file:
        os.fsync(file.fileno())  # what is not on the disk yet cannot be let go of
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if any(pages_in_memory(tar)):
            pytest.skip("this file system keeps what is not needed")
    place = data.asked([20])[0].places["cls"]
    pages = slice(place.offset // mmap.PAGESIZE, (place.offset + place.size - 1) // mmap.PAGESIZE + 1)
    seen: list[bool] = []

    def read(descriptor: int, size: int, offset: int) -> bytes:
        seen.append(any(pages_in_memory(tar)[pages]))
        return real(descriptor, size, offset)

    right = data.read(20, ["cls"]).fields["cls"]
    monkeypatch.setattr(os, "pread", read)
    assert data.tars.read(0, place) == data.tars.again(0, place) == right and place.size < mmap.PAGESIZE
    assert seen == [True, False]


def test_threads_and_processes_read_the_same(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "INDEX_BYTES_MAX", 1)
    monkeypatch.setattr(folders, "_FILES_MAX", 1)
    again: SampleData = pickle.loads(pickle.dumps(open_samples(packed)))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(again.read, range(60))) == [open_samples(packed).read(number) for number in range(60)]
    state = pickle.dumps(again)
    index([packed], classes=["other"], force=True)
    with pytest.raises(DataError, match="holds other data than"):
        pickle.loads(state)


def test_tokens_are_no_samples_and_samples_no_tokens(packed: Path, tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens", [100])
    with pytest.raises(DataError, match="holds tokens, not samples"):
        open_samples(tmp_path / "tokens")
    with pytest.raises(DataError, match="holds samples, not tokens"):
        open_data(packed)
    with pytest.raises(DataError, match=r"holds prepared folders \(.*tokens.*\) and is none itself"):
        open_samples(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"samples":60', '"samples":61', "does not count the samples"),
        ('"name":"samples-00000"', '"name":"../samples-00000"', "outside its folder"),
        ('"format":1', '"format":2', "newer Phalanx"),
        ('"classes":[', '"classes":7,"x":[', "is not a manifest of ours"),
    ],
)
def test_a_manifest_that_is_none_is_refused(packed: Path, old: str, new: str, said: str) -> None:
    path = packed / MANIFEST
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=said):
        open_samples(packed)


def test_a_manifest_without_shards_is_refused(packed: Path) -> None:
    data = json.loads((packed / MANIFEST).read_bytes()) | {"shards": [], "samples": 0}
    (packed / MANIFEST).write_text(json.dumps(data))
    with pytest.raises(DataError, match=r"manifest: .*manifest\.json.*: lists no shard; index its tar files again"):
        open_samples(packed)


def test_an_index_of_something_else_is_left_alone(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("x.txt", b"1")])
    (tmp_path / "a.index").write_text("mine")
    with pytest.raises(Conflict, match="is of something else and would be replaced"):
        index([tmp_path])
    assert (tmp_path / "a.index").read_text() == "mine"
    (tmp_path / "a.index").unlink()
    index([tmp_path])
    index([tmp_path])  # our own is made anew
