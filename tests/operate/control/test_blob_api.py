"""Large blobs through a real server: many at once cost it no memory, and nothing of one that was cut off stays."""

import contextlib
import hashlib
import http.client
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.operate.control.live_server import LiveServer, until

MIB = 2**20
SIZE = 24 * MIB
AT_ONCE = 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    live = LiveServer(tmp_path / "home")
    live.start()
    yield live
    live.end()


def peak_bytes(server: LiveServer) -> int:
    """The most memory that the server ever held."""
    assert server.process is not None
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def open_files(server: LiveServer) -> int:
    """How many downloads it holds in files, which have no name any more."""
    assert server.process is not None
    found = []
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            found.append(str(link.readlink()))
    return sum(name.startswith(f"{server.home}/run/") and name.endswith("(deleted)") for name in found)


def large(number: int) -> bytes:
    return hashlib.shake_128(str(number).encode()).digest(SIZE)


def uploads(server: LiveServer) -> list[Path]:
    return list((server.home / "run").glob(".upload-*"))


def test_many_large_blobs_at_once_go_in_and_out_in_little_memory(server: LiveServer) -> None:
    wanted = {hashlib.sha256(data).hexdigest(): data for data in map(large, range(AT_ONCE))}
    before = peak_bytes(server)
    with server.http() as client, ThreadPoolExecutor(AT_ONCE) as pool:
        put = pool.map(lambda sha: client.put(f"/blobs/{sha}", content=wanted[sha]).status_code, wanted)
        assert set(put) == {204}
        got = pool.map(lambda sha: hashlib.sha256(client.get(f"/blobs/{sha}").content).hexdigest(), wanted)
        assert list(got) == list(wanted)
    assert peak_bytes(server) - before < 6 * SIZE  # held whole, they took 25 times that size
    assert uploads(server) == []


def test_of_an_upload_that_is_wrong_or_cut_off_nothing_stays(server: LiveServer) -> None:
    data = large(0)
    sha256 = hashlib.sha256(data).hexdigest()
    with server.http() as client:
        assert client.put(f"/blobs/{'0' * 64}", content=data).status_code == 422
        assert uploads(server) == []
        half = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        half.putrequest("PUT", f"/api/v1/blobs/{sha256}")
        half.putheader("Authorization", f"Bearer {server.token()}")
        half.putheader("Content-Length", str(SIZE))
        half.endheaders(data[: SIZE // 2])
        until(lambda: uploads(server))
        half.close()
        until(lambda: not uploads(server))
        assert client.head(f"/blobs/{sha256}").status_code == 404
        assert client.put(f"/blobs/{sha256}", content=data).status_code == 204
    assert "Traceback" not in server.words()


def test_a_download_that_is_cut_off_leaves_no_file_open(server: LiveServer) -> None:
    data = large(0)
    path = f"/blobs/{hashlib.sha256(data).hexdigest()}"
    with server.http() as client:
        assert client.put(path, content=data).status_code == 204
        half = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        half.request("GET", f"/api/v1{path}", headers={"Authorization": f"Bearer {server.token()}"})
        assert half.getresponse().read(1000) == data[:1000]
        assert open_files(server) == 1
        half.close()
        until(lambda: open_files(server) == 0)
        assert client.get(path).content == data
    assert "Traceback" not in server.words()


def test_a_store_that_the_admin_has_to_mend_may_be_asked_again(server: LiveServer) -> None:
    """An agent that was told that its request is wrong would give the artifact up."""
    sha256 = hashlib.sha256(b"x").hexdigest()
    (server.home / "blobs" / sha256[:2]).write_text("a file where a folder is needed")
    with server.http() as client:
        answer = client.put(f"/blobs/{sha256}", content=b"x")
        assert (answer.status_code, "a file where a folder is needed" in answer.text) == (503, True)
        (server.home / "blobs" / sha256[:2]).unlink()
        assert client.put(f"/blobs/{sha256}", content=b"x").status_code == 204
