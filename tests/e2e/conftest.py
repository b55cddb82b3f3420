"""A platform and prepared data for the end-to-end tests."""

import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_platform import BIN, DEADLINE_S, Platform

from tests.storage.seaweed import Seaweed


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    platform = Platform(tmp_path_factory.mktemp("home"))
    platform.up()
    yield platform
    platform.run("down", "--force")


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server, which the tests of one file may stop and start."""
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 1 MB of the standard library's sources as token shards."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    folder = tmp_path_factory.mktemp("data") / "tokens"
    sources = [str(stdlib / name) for name in ("json", "email", "asyncio", "http", "logging")]
    command = [str(BIN), "data", "prepare", *sources, "--out", str(folder), "--vocab-size", "512"]
    subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_S)
    return folder
