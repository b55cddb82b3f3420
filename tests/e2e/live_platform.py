"""A real platform in a scratch home, driven by the real command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, TypeVar

import pytest

from phalanx.client import Client, connect
from phalanx.core.views import JobView
from phalanx.operate.agent.processes import start_ticks
from tests.forked import Forks
from tests.forked_command import IMPORTED

T = TypeVar("T")
BIN = Path(sys.executable).parent / "phalanx"
DEADLINE_S = 180.0
COMMANDS: Final = Forks("tests.forked_command:command", ("tests.forked_command", *IMPORTED), ())


@dataclass(frozen=True)
class Platform:
    """One `phalanx up` in its own home."""

    home: Path

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The command as a user types it; fails the test with its own words when `check` and it fails."""
        argv = [str(BIN), *arguments]
        with TemporaryFile() as out, TemporaryFile() as err:
            process = COMMANDS.start(argv, argv, err, out, self.environ)
            try:
                code = process.wait(DEADLINE_S)
            finally:
                process.send_signal(signal.SIGKILL)
            said = [_from_start(file) for file in (out, err)]
        result = subprocess.CompletedProcess(argv, code, *said)
        if check and result.returncode:
            pytest.fail(f"phalanx {' '.join(arguments)} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}")
        return result

    @property
    def environ(self) -> dict[str, str]:
        elsewhere = (
            "PHALANX_URL",
            "PHALANX_TOKEN",
            "PHALANX_PORT",
            "PHALANX_CLUSTER",
        )  # these would lead to another platform than this one
        return {**{name: value for name, value in os.environ.items() if name not in elsewhere}, "PHALANX_HOME": str(self.home)}

    def up(self) -> None:
        self.run("up", "--port", "0", "--cpu-slots", "2")

    def client(self) -> Client:
        return connect(self.home)

    def submit(self, spec: Mapping[str, Any], *options: str) -> str:
        path = self.home / "submitted.yaml"
        path.write_text(json.dumps(spec))  # JSON is YAML
        answer: str = json.loads(self.run("submit", str(path), *options, "-o", "json").stdout)["id"]
        return answer

    def kill(self, process: str) -> None:
        """SIGKILL of the server or the agent, and a wait until it is really gone."""
        pid = json.loads((self.home / "run" / f"{process}.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))

    def finished(self, job: str) -> JobView:
        with self.client() as client:
            view = client.wait(job, timeout_s=DEADLINE_S)
        assert view.outcome == "succeeded", f"{view.outcome}: {view.detail}\n{self.logs(job)}"
        return view

    def logs(self, job: str) -> str:
        return "".join(self.run("logs", job, "--rank", str(rank), check=False).stdout[-2000:] for rank in (0, 1))

    def at_step(self, job: str, step: int) -> JobView:
        """The job once it has recorded `step`."""

        def there() -> JobView | None:
            with self.client() as client:
                view = client.job(job)
            assert view.state != "finished", f"over before step {step}: {view.detail}\n{self.logs(job)}"
            return view if view.progress and view.progress.step >= step else None

        return until(there)


def _from_start(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def until(probe: Callable[[], T | None]) -> T:
    """What `probe` answers once it answers something true. Fails the test when it never does."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if answer := probe():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{probe} never became true")


def alive(pid: int) -> bool:
    return start_ticks(pid) is not None
