"""A command line with a recorded server behind it, in which a test records what it needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recorded import recorded_server
from tests.show.cli.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    monkeypatch.setenv("PHALANX_HOME", str(tmp_path / "home"))
    for name in ("PHALANX_URL", "PHALANX_TOKEN", "PHALANX_PORT", "PHALANX_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    with recorded_server(tmp_path / "home") as server:
        yield Terminal(server, tmp_path / "home", capsys)
