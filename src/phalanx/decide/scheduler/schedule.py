"""The pipeline, whole: eligible -> order -> fit -> explain. Pure and deterministic: equal snapshots give equal plans."""

from typing import Final

from phalanx.core.ids import NodeId
from phalanx.core.reasons import Behind, NoNodes
from phalanx.decide.scheduler.eligible import eligible_types, put_off
from phalanx.decide.scheduler.explain import never_fits, no_room
from phalanx.decide.scheduler.fit import Fleet, fit, taken
from phalanx.decide.scheduler.line import Line
from phalanx.decide.scheduler.order import in_order
from phalanx.decide.scheduler.plan import Decision, Plan, Start, Wait
from phalanx.decide.scheduler.snapshot import NodeFacts, PendingJob, Snapshot

_TO_COME: Final = ("",)
"""The pool of a fleet without nodes: everybody waits in one line."""


def schedule(snapshot: Snapshot) -> Plan:
    """One decision for each pending job, by priority and age, gangs whole, no device twice."""
    fleet: dict[NodeId, NodeFacts] = {node.node: node for node in sorted(snapshot.nodes, key=lambda node: node.node)}
    line = Line()
    decisions: list[Decision] = []
    for job in in_order(snapshot.pending):
        backoff = put_off(job, snapshot.now_ms)
        decision = Wait(job.job, backoff, None) if backoff else _decide(job, fleet, line)
        if isinstance(decision, Start):
            fleet.update(taken(fleet, job, decision.placement))
        decisions.append(decision)
    return Plan(tuple(decisions))


def _decide(job: PendingJob, fleet: Fleet, line: Line) -> Decision:
    nodes = tuple(fleet.values())
    impossible = never_fits(job, nodes)
    if impossible is not None:
        return Wait(job.job, impossible, None)
    kinds = eligible_types(job, nodes)
    found = fit(job, line.open(kinds), fleet)
    if found is not None:
        return Start(job.job, found[1])
    could = fit(job, kinds, fleet)
    head = line.heads[could[0]] if could is not None else None
    position = line.join(job, kinds or _TO_COME)
    if not any(node.schedulable for node in nodes):
        return Wait(job.job, NoNodes(len(nodes), sum(node.drained for node in nodes)), position)
    if head is not None:
        return Wait(job.job, Behind(head, position), position)
    return Wait(job.job, no_room(job, kinds, fleet), position)
