"""An image is fetched once for a node, whole or not at all. The tool is a script: what it is asked for is all that matters."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.core.devices import NodeShape
from phalanx.core.errors import SpecError, StoreUnavailable
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.messages import Launch
from phalanx.operate.agent.attempts import Accepted, AttemptFolder
from phalanx.operate.agent.surroundings import surroundings

IMAGE = "registry.example/team/train:1"
SHAPE = NodeShape(NodeId("a"), "127.0.0.1", (), 1.0, 2**30, (30000, 30100))
TOOL = """#!/bin/sh
test "$1" = pull || exit 9
echo "$$" >> "$(dirname "$0")/calls"
. "$(dirname "$0")/act"
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `apptainer pull INTO IMAGE` does is in this file, as shell; $2 is INTO."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "apptainer").write_text(TOOL)
    (folder / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "act"


def attempt(node: Path, name: str) -> AttemptFolder:
    launch = Launch(
        attempt=AttemptId(name), argv=("true",), python="", env={}, code="", folder="/", first_rank=0, world_size=1, node_rank=0,
        num_nodes=1, devices=(0,), cpus=0, master_address="127.0.0.1", master_port=1, hyperparameters={}, checkpoint_every=0,
        checkpoint_keep_last=1, restarts=0, image=IMAGE,
    )  # fmt: skip
    folder = AttemptFolder(node / "attempts" / name, Accepted(launch, 1))
    folder.path.mkdir(parents=True, exist_ok=True)
    return folder


async def ready(node: Path, name: str) -> None:
    await surroundings(attempt(node, name), SHAPE, node / "agent.sock", None, os.environ)


def images(node: Path) -> list[str]:
    return sorted(path.suffix for path in (node / "images").iterdir())


def test_two_attempts_at_once_fetch_it_once(tool: Path, tmp_path: Path) -> None:
    tool.write_text("printf whole > $2")

    async def both() -> None:
        await asyncio.gather(ready(tmp_path, "one-1.1"), ready(tmp_path, "two-2.1"))

    asyncio.run(both())
    assert len((tool.parent / "calls").read_text().split()) == 1
    assert images(tmp_path) == [".image", ".lock"]


@pytest.mark.parametrize(
    ("says", "kind"), [("manifest unknown", SpecError), ("dial tcp 127.0.0.1:443: connect: connection refused", StoreUnavailable)]
)
def test_half_an_image_is_none(tool: Path, tmp_path: Path, says: str, kind: type[Exception]) -> None:
    tool.write_text(f"printf half > $2; echo '{says}' >&2; exit 1")
    with pytest.raises(kind, match=says):
        asyncio.run(ready(tmp_path, "one-1.1"))
    assert ".image" not in images(tmp_path)
    tool.write_text("test ! -e $2 && printf whole > $2")
    asyncio.run(ready(tmp_path, "two-2.1"))
    assert images(tmp_path) == [".image", ".lock"]


def test_what_a_killed_agent_still_fetches_is_ended_first(tool: Path, tmp_path: Path) -> None:
    """Of another attempt too: it is the same image, and the same file."""
    tool.write_text("printf whole > $2; env > $(dirname $0)/env")
    asyncio.run(ready(tmp_path, "one-1.1"))
    (mark,) = (line for line in (tool.parent / "env").read_text().splitlines() if line.startswith("PHALANX_BUILD="))
    (image,) = (tmp_path / "images").glob("*.image")
    image.unlink()
    name, _, value = mark.partition("=")
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], env={name: value}) as before:
        try:
            asyncio.run(ready(tmp_path, "two-2.1"))
            assert before.wait(60) < 0
        finally:
            before.kill()
    assert image.exists()
