"""One seed, from chaos to calm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from phalanx.core.ids import JobId
from phalanx.core.states import Finished, Paused, Pending
from phalanx.operate.control.world import JobRecord
from phalanx.operate.sim.cluster import Cluster
from phalanx.operate.sim.faults import Swarm
from tests.simulation.safety import Violated, Watch

CHAOS_S: Final = (20, 140)
CALM_S_MAX: Final = 400
"""Longer than every patience in a row: a dial, a lease, a minute's pause between attempts, the longest jobs one after another."""

Line = tuple[int, str, str, object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed. `property_name` and `what` of the first violation, '' when there was none. `seen`: how often which
    faults struck and which things happened, as `Watch.seen` names them."""

    seed: int
    property_name: str
    what: str
    seconds: int
    events: int
    seen: Mapping[str, int] = field(default_factory=dict)


def run(seed: int, history: list[Line] | None = None, swarm: Swarm | None = None) -> Outcome:
    """Chaos, then calm: safety holds at every step, and once the faults stop, everything open comes to its end."""
    watch = Watch(history)
    cluster = Cluster(seed, watch, swarm)
    watch.watch(cluster)
    seconds = 0
    try:
        for _ in range(Random(seed).randint(*CHAOS_S)):
            cluster.second()
            seconds += 1
        cluster.heal()
        for _ in range(CALM_S_MAX):
            if converged(cluster):
                break
            cluster.second()
            seconds += 1
        _check_end(cluster, watch)
    except Violated as violated:
        watch.note("SAFETY", "is violated", violated)
        return Outcome(seed, violated.name, str(violated), seconds, len(watch.log))
    finally:
        cluster.close()
    return Outcome(seed, "", "", seconds, len(watch.log), watch.seen + cluster.faults.struck)


def converged(cluster: Cluster) -> bool:
    """Nothing is left to do."""
    return not unfinished(cluster)


def unfinished(cluster: Cluster) -> list[str]:
    """What keeps the cluster from being at rest."""
    leader = cluster.leader
    if leader is None:
        return ["there is no control plane"]
    jobs = leader.world.jobs
    found = [f"{job.id} is {job.state}, {job.reason}" for job in leader.world.open_jobs.values() if not rests(job, jobs)]
    for node in cluster.nodes:
        machine, record = node.machine, leader.world.nodes.get(node.machine.node)
        if record is None or not record.up:
            found.append(f"{machine.node} is not up")
        if machine.living:
            found.append(f"ranks live on {machine.node}: {sorted(machine.living)}")
        if machine.disk.promises:
            found.append(f"{machine.node} still holds {sorted(machine.disk.promises)}")
    if cluster.users.unanswered:
        found.append(f"users wait for answers: {cluster.users.unanswered}")
    if any(server.alive for server in cluster.servers if server is not leader):
        found.append("a control plane that was superseded is still there")
    return found


def rests(job: JobRecord, jobs: Mapping[JobId, JobRecord]) -> bool:
    """Over, paused by somebody, or waiting for what this fleet does not have, or for a job that rests and did not succeed."""
    if isinstance(job.state, Finished | Paused):
        return True
    if not isinstance(job.state, Pending) or job.reason is None:
        return False
    waits_for_jobs = job.reason.kind == "dependencies"  # the first job of an array stands for all of it
    before = [one for one in jobs.values() if {one.id, one.array} & set(job.spec.after)] if waits_for_jobs else []
    return job.reason.kind == "never_fits" or any(rests(one, jobs) and not _succeeded(one) for one in before)


def _succeeded(job: JobRecord) -> bool:
    return isinstance(job.state, Finished) and job.state.outcome == "succeeded"


def _check_end(cluster: Cluster, watch: Watch) -> None:
    left = unfinished(cluster)
    if left:
        raise Violated("converges", f"after {CALM_S_MAX} s of calm: {'; '.join(left)}")
    assert cluster.leader is not None
    held = cluster.leader.world.held()
    if held:
        raise Violated("converges", f"devices are held by nobody's job: {held}")
    watch.check_tables()
    watch.check_log()
    watch.check_ledger()
