"""What `unpack` must refuse. Each archive is written with tarfile or by hand, as an attacker would."""

import gzip
import io
import os
import resource
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import SetupError, SpecError, StoreUnavailable
from phalanx.storage import workdir
from phalanx.storage.workdir import pack, unpack

Members = list[tarfile.TarInfo]


def member(name: str, type_: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = type_, link, size
    return info


def archive(*members: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for info in members:
            tar.addfile(info, io.BytesIO(bytes(info.size)) if info.isreg() else None)
    return out.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    return member(name, tarfile.SYMTYPE, target)


HOSTILE = {
    "absolute path": [member("/etc/cron.d/x")],
    "parent": [member("../x")],
    "parent inside": [member("a/../../x")],
    "dot": [member("./a")],
    "empty part": [member("a//b")],
    "absolute link": [link("a", "/etc")],
    "link to parent": [link("a", "..")],
    "link to parent deeper": [link("d/a", "../../x")],
    "link down and up": [link("d/l", ".."), link("x", "d/l/../../etc")],
    "empty link": [link("a", "")],
    "write through a link": [link("a", "d"), member("a/x")],
    "write over a link": [link("a", "b"), member("a")],
    "link over a folder": [member("a/x"), link("a", "b")],
    "link through a link": [link("a", "d"), link("a/b", "x")],
    "hard link": [member("x"), member("a", tarfile.LNKTYPE, "x")],
    "hard link out": [member("a", tarfile.LNKTYPE, "/etc/passwd")],
    "fifo": [member("a", tarfile.FIFOTYPE)],
    "character device": [member("a", tarfile.CHRTYPE)],
    "block device": [member("a", tarfile.BLKTYPE)],
    "contiguous": [member("a", tarfile.CONTTYPE)],
    "unknown type": [member("a", b"Z")],
    "twice": [member("a"), member("a")],
    "file below a file": [member("a"), member("a/b")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_member_that_is_not_plain_and_inside_is_refused(members: Members, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(SpecError) as caught:
        unpack(archive(member("good.py"), *members), tmp_path / "in" / "w")
    assert caught.value.field == "workdir"
    assert list((tmp_path / "in").iterdir()) == []
    assert list(tmp_path.iterdir()) == [tmp_path / "in"]


def test_links_inside_are_kept_and_lead_nowhere_else(tmp_path: Path) -> None:
    unpack(archive(link("d/up", "../x"), link("self", "self"), link("gone", "none"), member("x"), link("dl", "d")), tmp_path / "w")
    assert (tmp_path / "w" / "d" / "up").resolve() == (tmp_path / "w" / "x").resolve()
    assert (tmp_path / "w" / "dl" / "up").resolve() == (tmp_path / "w" / "x").resolve()


def test_special_bits_and_owners_are_dropped(tmp_path: Path) -> None:
    info = member("x")
    info.mode, info.uid, info.gid = 0o6777, 12345, 12345
    unpack(archive(info), tmp_path / "w")
    assert (tmp_path / "w" / "x").stat().st_mode & 0o7777 & ~0o755 == 0
    assert (tmp_path / "w" / "x").stat().st_uid == os.getuid()


def test_more_members_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert workdir.MEMBERS_MAX == 100_000
    monkeypatch.setattr(workdir, "MEMBERS_MAX", 1000)
    for number, message in ((1000, None), (1001, "more than 1000 members")):
        data = gzip.compress(member("d", tarfile.DIRTYPE).tobuf() * number + bytes(1024), 1)
        if message is None:
            unpack(data, tmp_path / "good")
            continue
        with pytest.raises(SpecError, match=message):
            unpack(data, tmp_path / "w")
    assert [entry.name for entry in tmp_path.iterdir()] == ["good"]


def test_few_members_that_name_very_many_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workdir, "MEMBERS_MAX", 100)
    with pytest.raises(SpecError, match="more than 200 members and folders"):
        unpack(archive(*(member(f"{number}/" + "a/" * 60 + "x") for number in range(10))), tmp_path / "w")
    assert list(tmp_path.iterdir()) == []


def zeros(info: tarfile.TarInfo, num_bytes: int) -> bytes:
    """An archive with one member that truly holds so many zeros."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as zipped:
        zipped.write(info.tobuf())
        for _ in range(num_bytes // 2**20):
            zipped.write(bytes(2**20))
    return out.getvalue()


@pytest.mark.parametrize("sizes", [(2**20 + 1,), (2**19, 2**19 + 1), (2**40,)])
def test_sizes_over_the_limit(sizes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workdir, "UNPACKED_BYTES_MAX", 2**20)
    parts = [member(f"f{number}", size=size).tobuf() + bytes(min(size, 2**20)) for number, size in enumerate(sizes)]
    with pytest.raises(SpecError, match=r"unpacks to more than 1\.0 MiB"):
        unpack(gzip.compress(b"".join(parts)), tmp_path / "w")
    assert list(tmp_path.iterdir()) == []


def test_one_gibibyte_is_the_limit(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"more than 1\.0 GiB"):
        unpack(gzip.compress(member("a", size=2**30 + 1).tobuf()), tmp_path / "w")


def test_an_extended_header_of_a_gibibyte_is_not_read_into_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
        with pytest.raises(SpecError, match="impossible size"):
            unpack(zeros(member("x", kind, size=200 * 2**20), 200 * 2**20), tmp_path / "w")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 * 1024


def _negative_size() -> bytes:
    info = member("x")
    block = bytearray(info.tobuf())
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _pax(**fields: str) -> bytes:
    info = member("x")
    info.pax_headers = fields
    return info.tobuf(tarfile.PAX_FORMAT)


BROKEN: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "not gzip": lambda: b"hello" * 1000,
    "not tar": lambda: gzip.compress(b"hello" * 1000),
    "truncated gzip": lambda: archive(member("x", size=100_000))[:60],
    "file cut short": lambda: gzip.compress(member("x", size=100_000).tobuf() + bytes(512)),
    "negative size": lambda: gzip.compress(_negative_size() + bytes(1024)),
    "negative size in an extended header": lambda: gzip.compress(_pax(size="-1024") + bytes(1024)),
    "sparse": lambda: gzip.compress(
        _pax(**{"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "99"}) + bytes(1024)
    ),
    "headers within headers": lambda: gzip.compress(member("x", tarfile.XHDTYPE).tobuf() * 5000),
    "huge number": lambda: gzip.compress(_pax(size="9" * 400) + bytes(1024)),
}


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.timeout(30)
def test_a_broken_archive_is_one_clear_error(make: Callable[[], bytes], tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        unpack(make(), tmp_path / "w")
    assert caught.value.field == "workdir"
    assert list(tmp_path.iterdir()) == []


@given(position=st.integers(0, 2**20), flip=st.integers(1, 255))
def test_a_flipped_byte_unpacks_inside_or_not_at_all(position: int, flip: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.mktemp("flip")
    plain = bytearray(gzip.decompress(archive(member("a/b.py", size=700), link("l", "a/b.py"), member("c"))))
    plain[position % len(plain)] ^= flip
    try:
        unpack(gzip.compress(bytes(plain), 1), base / "w")
    except SpecError:
        assert list(base.iterdir()) == []
    else:
        assert [entry.name for entry in base.iterdir()] == ["w"]
        assert all(path.resolve().is_relative_to(base.resolve() / "w") for path in (base / "w").rglob("*"))


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "mine").write_text("x")
    (tmp_path / "l").symlink_to("w")
    for into in (tmp_path / "w", tmp_path / "l", tmp_path / "w" / "mine"):
        with pytest.raises(SetupError):
            unpack(archive(member("x")), into)
    assert {path.name for path in tmp_path.iterdir()} == {"w", "l"}
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["mine"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x").write_bytes(os.urandom(100_000))
    data = pack(tmp_path / "code")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StoreUnavailable):
            unpack(data, tmp_path / "w")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["code"]
    unpack(data, tmp_path / "w")
