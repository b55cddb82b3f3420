"""A real S3 server on loopback: SeaweedFS, one process, its data in a temporary folder."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

WEED = Path(sys.executable).parent / "weed"
KEY, SECRET, BUCKET = "ciaccess", secrets.token_hex(16), "bkt"
"""The secret is another one in each run of the tests: a server of another run on our port is never taken for ours."""
START_S_MAX = 60.0
STARTS_MAX = 5
_GRPC = 10_000
"""Each service listens there above its port too."""
_PORTS = range(10_000, 22_000)
"""With those above them outside what Linux gives outgoing connections (32,768 and up)."""
_END_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
"""PR_SET_PDEATHSIG (linux/prctl.h), SIGKILL: also when the tests are killed, and no fixture gets to its end."""


class Seaweed:
    """Start, stop and address of one server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = _fresh_ports()
        self._was_up = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def environ(self) -> Mapping[str, str]:
        """What a client finds in its environment. HOME is a folder without profile files."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "HOME": str(self._folder),
        }

    def url(self) -> str:
        """A prefix that nobody has used."""
        return f"s3://{BUCKET}/{secrets.token_hex(6)}"

    def start(self) -> None:
        """Once it was up it comes back on the same ports. Nothing is left running when this raises."""
        try:
            for _ in range(1 if self._was_up else STARTS_MAX):
                self._begin()
                if self._comes_up():
                    self._was_up = True
                    return
                self._ports = self._ports if self._was_up else _fresh_ports()  # another took one since we looked
            raise AssertionError(self._words())
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        ports = [f"-{name}.port={port}" for name, port in self._ports.items()]
        off = ["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        here = [f"-dir={self._folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={BUCKET}"]
        limits = {"GOMEMLIMIT": "512MiB", "GOGC": "50"}
        with (self._folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _END_WITH_US, WEED, "mini", *here, *ports, *off],
                env={**os.environ, **limits, **self.environ},
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Gone when it returns, so that its ports are free again."""
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(START_S_MAX)
            finally:
                self._process.kill()
                self._process = None

    def _words(self) -> str:
        return (self._folder / "weed.log").read_text()[-2000:]

    def _comes_up(self) -> bool:
        """True once it takes objects, which is later than its port is open; False when it ended instead."""
        from phalanx.core.errors import PhalanxError
        from phalanx.storage.objects import open_store
        from phalanx.storage.remote import Patience

        store = open_store(f"s3://{BUCKET}/ready", self.environ, Patience(1.0, 5.0, 1.0))
        end = time.monotonic() + START_S_MAX
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                return False
            try:
                store.check()
                store.put("probe", b"ready")
            except PhalanxError:
                assert time.monotonic() < end, self._words()
                time.sleep(0.05)
            else:
                return True


def _fresh_ports() -> dict[str, int]:
    return dict(zip(("master", "volume", "filer", "s3"), free_ports(4), strict=True))


def free_ports(count: int) -> list[int]:
    """Ports that are free, with those of their gRPC twins."""
    found: list[int] = []
    while len(found) < count:
        port = secrets.choice(_PORTS)
        if port not in found and _is_free(port) and _is_free(port + _GRPC):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
