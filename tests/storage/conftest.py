"""A real S3 server for every test here that asks for one, and each kind of store that runs on this machine."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.storage.objects import ObjectStore, open_store
from phalanx.storage.remote import Patience
from tests.storage.seaweed import Seaweed

BRIEF = Patience(connect_s=1.0, request_s=20.0, retries_s=2.0, retries_max=3)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGKILL)  # at once: nobody reads its data again


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store."""
    if request.param == "local":
        return open_store(tmp_path / "objects")
    if request.param == "memory":
        return open_store("memory://")
    server: Seaweed = request.getfixturevalue("seaweed")
    return open_store(server.url(), server.environ, BRIEF)
