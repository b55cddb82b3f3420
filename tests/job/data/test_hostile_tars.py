"""Tars of strangers: what holds no sample is counted and left out, what is no tar is one clear error, and nothing is extracted."""

import io
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data.tars.ingest import index
from phalanx.job.data.tars.members import members
from phalanx.job.data.tars.open import open_samples
from phalanx.job.data.tars.scan import scan
from tests.drawn import examples
from tests.job.data.image_folders import file_named, special, write_tar

ONE = [("0001.jpg", b"picture" * 100), ("0001.cls", b"7"), ("0002.jpg", b"other" * 300), ("0002.cls", b"8")]


def whole() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in [*ONE, ("ż" * 120 + ".json", b"{}")]:
            archive.addfile(file_named(name, len(data)), io.BytesIO(data))
    return made.getvalue()


WHOLE = whole()


def test_what_is_no_sample_is_counted_and_left_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        for info in (
            special("folder", tarfile.DIRTYPE),
            special("0000.jpg", tarfile.SYMTYPE, "/etc/passwd"),
            special("0001.jpg", tarfile.LNKTYPE, "../../secret"),
            special("0002.jpg", tarfile.CHRTYPE),
            special("0003.jpg", tarfile.BLKTYPE),
            special("0004.jpg", tarfile.FIFOTYPE),
        ):
            archive.addfile(info)
        unsafe, no_field = (
            ("/etc/cron.jpg", "../up.jpg", "a/../../b.jpg", "bell\a.jpg"),
            ("nodot", ".hidden", "._0005.jpg", "__meta__/x.json"),
        )
        for name in (*unsafe, *no_field, "0006.jpg"):
            archive.addfile(file_named(name, 3), io.BytesIO(b"abc"))
        odd = file_named("latin.jpg", 3)
        odd.name = b"\xe9.jpg".decode("utf-8", "surrogateescape")
        archive.addfile(odd, io.BytesIO(b"abc"))
    before = sorted(tmp_path.iterdir())
    manifest = open_samples(index([tmp_path])).manifest
    assert sorted(set(tmp_path.iterdir()) - set(before)) == [tmp_path / "manifest.json", tmp_path / "x.index"]
    assert manifest.samples == 1 and open_samples(tmp_path).read(0).key == "0006"
    assert manifest.skipped == {"link": 2, "no_field": 4, "special": 3, "unsafe_name": 5}


def test_a_sparse_member_is_left_out(tmp_path: Path) -> None:
    headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,3,9000,0", "GNU.sparse.size": "9000"}
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = special("0001.jpg", tarfile.REGTYPE, headers=headers)
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
        archive.addfile(file_named("0002.jpg", 1), io.BytesIO(b"x"))
    assert open_samples(index([tmp_path])).manifest.skipped == {"sparse": 1}
    assert open_samples(tmp_path).key(0) == "0002"


def test_keys_and_fields_that_come_twice_are_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", [*ONE, ("0001.json", b"{}")])
    with pytest.raises(DataError, match=r"key.*'0001'.*comes twice in x.tar, with others between"):
        index([tmp_path])
    write_tar(tmp_path / "x.tar", [("0001.jpg", b"1"), ("0001.JPG", b"2")])
    with pytest.raises(DataError, match=r"0001\.jpg.*comes twice in x.tar"):
        index([tmp_path])
    write_tar(tmp_path / "x.tar", [(f"image.{number}.jpg", b"1") for number in range(300)])
    with pytest.raises(DataError, match=r"fields of x.tar.*over 256.*up to its first dot"):
        index([tmp_path])
    write_tar(tmp_path / "x.tar", [("README", b"1")])
    with pytest.raises(DataError, match=r"x.tar.*holds no sample \(its members: 1 no_field\)"):
        index([tmp_path])


@pytest.mark.parametrize("length", [0, 1, 511, 512, 700, 1536, 2048, len(WHOLE) - 10240, 5000])
def test_a_cut_tar_is_refused_wherever_it_is_cut(tmp_path: Path, length: int) -> None:
    (tmp_path / "x.tar").write_bytes(WHOLE[:length])
    with pytest.raises(DataError, match=r"x.tar.*is no whole tar file"):
        scan(tmp_path / "x.tar")


@pytest.mark.parametrize("size", ["77777777777", "\x80" + "\0" * 7 + "\x7f\xff\xff\xff", "\xff" * 9 + "\0" * 3, "-0000001000"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.SYMTYPE])
def test_a_size_that_cannot_be_true_is_refused_at_once(tmp_path: Path, size: str, kind: bytes) -> None:
    head = bytearray(file_named("0001.jpg", 10).tobuf(tarfile.GNU_FORMAT))
    head[124:136] = size.encode("latin-1").ljust(12, b"\0")[:12]
    head[156:157] = kind
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    (tmp_path / "x.tar").write_bytes(bytes(head) + WHOLE)
    if kind == tarfile.SYMTYPE and size[0] != "\xff" and not size.startswith("-"):  # links have no bytes, whatever they say
        assert scan(tmp_path / "x.tar").skipped == {"link": 1}
        return
    with pytest.raises(DataError, match="is no whole tar file"):
        scan(tmp_path / "x.tar")


def test_headers_for_headers_for_headers_are_refused(tmp_path: Path) -> None:
    record = b"9 a=b\n".ljust(512, b"\0")
    info = file_named("x", 6)
    info.type = tarfile.XHDTYPE
    (tmp_path / "x.tar").write_bytes((info.tobuf(tarfile.USTAR_FORMAT) + record) * 3000 + WHOLE)
    with pytest.raises(DataError, match="is no whole tar file"):
        scan(tmp_path / "x.tar")


def test_a_real_size_beyond_its_bytes_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = special("0001.jpg", tarfile.REGTYPE, headers={"GNU.sparse.realsize": "2000"})
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
        archive.addfile(file_named("0002.jpg", 5000), io.BytesIO(b"x" * 5000))
    with pytest.raises(DataError, match="runs into the next one"):
        scan(tmp_path / "x.tar")


def test_two_tars_in_one_file_and_compressed_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(WHOLE + WHOLE)
    with pytest.raises(DataError, match="one file for each tar"):
        scan(tmp_path / "x.tar")
    with tarfile.open(tmp_path / "x.tar", "w:gz") as archive:
        archive.addfile(file_named("0001.jpg", 1), io.BytesIO(b"x"))
    with pytest.raises(DataError, match="unpacked where it is compressed"):
        scan(tmp_path / "x.tar")


def test_a_damaged_header_is_no_end(tmp_path: Path) -> None:
    data = bytearray(WHOLE)
    data[1536 + 5] ^= 1
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(DataError, match="comes neither a member nor the end"):
        scan(tmp_path / "x.tar")


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12)), max_size=6),
    st.integers(0, len(WHOLE)),
)
def test_no_bytes_do_more_than_be_refused(changes: list[tuple[int, bytes]], length: int) -> None:
    """Whatever is found lies in the file, one after the other, under a safe name."""
    data = bytearray(WHOLE)
    for at, new in changes:
        data[at : at + len(new)] = new[: len(data) - at]
    file, skipped = io.BytesIO(bytes(data[: length or None])), Counter[str]()
    at = 0
    try:
        for member in members(file, "x.tar", len(file.getvalue()), skipped):
            assert at <= member.offset <= member.offset + member.size <= len(file.getvalue())
            assert ".." not in member.key and not member.key.startswith("/") and "/" not in member.field
            at = member.offset + member.size
    except DataError as error:
        assert "is no whole tar file" in str(error)
