"""What the process of a test's agent runs, as `phalanx up` would have it."""

from pathlib import Path

from phalanx.core.ids import NodeId
from phalanx.operate.agent.agent import run_agent
from phalanx.operate.agent.connection import written_url


def main(home: str, token: str) -> None:
    """Four CPU slots, and the control plane whose address stands in the home."""
    run_agent(Path(home), written_url(Path(home)), token, NodeId("node-a"), 4)
