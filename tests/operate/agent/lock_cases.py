"""Workdirs with a lock of their own, from wheels made here: no network, no index."""

import io
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from make_wheels import make_wheel

from phalanx.operate.agent.environments import Wanted
from phalanx.storage.hashes import sha256_bytes
from phalanx.storage.workdir import pack

LOCAL = "--no-index\n--find-links ./wheels\n"
SLOW_BACKEND = """
import os, pathlib, time, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    gate = pathlib.Path({gate!r})
    (gate / f"building-{{os.getpid()}}").touch()
    deadline = time.monotonic() + 60
    while not (gate / "open").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    name = "slow-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        wheel.writestr("slow.py", "VERSION = '1.0'")
        wheel.writestr("slow-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: slow\\nVersion: 1.0\\n")
        wheel.writestr("slow-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("slow-1.0.dist-info/RECORD", "")
    return name
"""
SLOW_PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "slow"
version = "1.0"
"""


@dataclass(frozen=True)
class Bench:
    """A node's folder, with uv's cache in it."""

    root: Path

    @property
    def environments(self) -> Path:
        return self.root / "node" / "environments"

    @property
    def outer(self) -> dict[str, str]:
        """As an agent that was started with another Python's variables."""
        return {**os.environ, "UV_CACHE_DIR": str(self.root / "uv-cache"), "UV_HTTP_RETRIES": "0", "PYTHONPATH": "/nowhere"}

    def workdir(self, files: Mapping[str, str], name: str = "code") -> Path:
        """A folder with these files and the wheels of `tiny_greeting` 1.0 and 2.0, and of `needy`, which needs it."""
        folder = self.root / name
        (folder / "wheels").mkdir(parents=True)
        for version in ("1.0", "2.0"):
            make_wheel(folder / "wheels", "tiny_greeting", version)
        make_wheel(folder / "wheels", "needy", "1.0", ["tiny-greeting"])
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    def slow(self, gate: Path) -> dict[str, str]:
        """Files of a package whose build says that it began, by a file in `gate`, and ends once `gate/open` is there."""
        gate.mkdir(exist_ok=True)
        return {"slow/pyproject.toml": SLOW_PROJECT, "slow/backend.py": SLOW_BACKEND.format(gate=str(gate))}

    def wanted(self, folder: Path, lock: str, attempt: str = "demo-1.1") -> Wanted:
        packed = pack(folder)
        place = self.root / "node" / "attempts" / attempt
        place.mkdir(parents=True, exist_ok=True)
        return Wanted(lock, folder, sha256_bytes(packed), packed, place, place / "rank-0.log")


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """A packed workdir made by hand."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()
