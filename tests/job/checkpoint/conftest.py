"""A real S3 server for the tests here that ask for one, and folders of checkpoints of both kinds."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from phalanx.job.checkpoint.folder import Folder, folder_at
from phalanx.job.checkpoint.object_folder import _store_of
from tests.storage.conftest import seaweed as seaweed
from tests.storage.meddler import Meddler
from tests.storage.seaweed import Seaweed


@pytest.fixture
def s3(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Seaweed:
    """The server, with its address and keys in the environment, as ranks and keepers find them."""
    for name, value in seaweed.environ.items():
        if name != "HOME":
            monkeypatch.setenv(name, value)
    _store_of.cache_clear()  # what a test before this one talked to has another address
    return seaweed


@pytest.fixture(params=["disk", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    """Where checkpoints shall lie."""
    if request.param == "disk":
        yield folder_at(tmp_path / "checkpoints")
        return
    server: Seaweed = request.getfixturevalue("s3")
    yield folder_at(server.url())


@pytest.fixture
def meddler(s3: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meddler]:
    """Between everybody here and the store."""
    port = urlsplit(s3.endpoint).port
    assert port
    proxy = Meddler(port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    monkeypatch.setenv("PHALANX_CHECKPOINT_REQUEST_S", "1")
    _store_of.cache_clear()
    yield proxy
    proxy.close()
