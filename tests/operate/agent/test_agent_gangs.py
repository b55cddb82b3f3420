"""The first node of a gang that recovers inside: its agent says whom the coordinator awaits, and passes on that all run."""

from dataclasses import replace

from phalanx.core.messages import GangRecovery, GangStarted, StopRanks
from tests.operate.agent.agent_cell import Cell, until
from tests.ports import free_port


def test_whom_the_coordinator_awaits_is_reported_and_it_hears_that_all_nodes_run(cell: Cell) -> None:
    recovery = GangRecovery(0, 5_000, (2, 1), free_port(), "t" * 64)
    plain = cell.launch("import time; time.sleep(600)")
    launch = replace(plain, world_size=3, num_nodes=2, master_address="127.0.0.1", recovery=recovery)
    cell.far.start(launch)
    until(lambda: [report for report in cell.far.reports(launch.attempt) if report.awaits == (1,)])
    log = cell.folder() / "shim.log"
    assert "every node runs" not in log.read_text()
    cell.far.say(GangStarted(launch.attempt, 1))
    until(lambda: "every node runs now: node 1 may take 30 s to come here" in log.read_text())
    cell.far.say(StopRanks(launch.attempt, 1, 100))
    assert cell.far.phase(launch.attempt, "ended").awaits == (1,)
