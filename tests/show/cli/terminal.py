"""The command line run in this process against a recorded server: what it wrote, and how it ended."""

import dataclasses
from pathlib import Path

import pytest

from phalanx.show.cli.main import run
from tests.recorded import RecordedServer
from tests.show.cli.phalanx_under_test import TOOLS


@dataclasses.dataclass(frozen=True)
class Shown:
    """What one command wrote, and how it ended."""

    code: int
    out: str
    err: str


@dataclasses.dataclass(frozen=True)
class Terminal:
    """Runs commands against a recorded server."""

    server: RecordedServer
    home: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Shown:
        code = run(TOOLS, arguments)
        out, err = self.capture.readouterr()
        return Shown(code, out, err)
