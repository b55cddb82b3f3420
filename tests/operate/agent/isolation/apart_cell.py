"""A node whose agent keeps jobs apart, or does not, and its control plane."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from phalanx.core.isolation import Mode
from phalanx.operate.agent.isolation import cgroups
from phalanx.operate.home import set_isolation
from tests.operate.agent.agent_cell import AgentProcess, Cell, FarSide, end_shim


@contextlib.contextmanager
def a_cell(home: Path, mode: Mode = "uid", namespaces: bool = True) -> Iterator[Cell]:
    (home / "node").mkdir(parents=True)
    home.chmod(0o700)
    set_isolation(home, mode)
    made = Cell(home, FarSide(home), AgentProcess(home, namespaces=namespaces))
    made.far.up()
    made.agent.start()
    try:
        yield made
    finally:
        if made.agent.process is not None and made.agent.process.poll() is None:
            made.agent.end()
        for claim in (home / "node" / "attempts").glob("*/shim-pid.json"):
            end_shim(json.loads(claim.read_bytes())["pid"])
        made.far.down()
        for attempt in (home / "node" / "attempts").glob("*-*"):  # of which this end told no agent
            group = cgroups.find().of(f"{home} {attempt.name}")
            assert group is None or cgroups.ended(group)
    assert "Traceback" not in made.agent.log(), made.agent.log()
