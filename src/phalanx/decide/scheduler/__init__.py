"""Who runs where, now: `schedule(Snapshot) -> Plan`, pure. Imports core and fabric; no clock, no I/O, no randomness."""

from phalanx.decide.scheduler.plan import Claim, Eta, Evict, Plan, Reservation, Start, Wait
from phalanx.decide.scheduler.schedule import schedule
from phalanx.decide.scheduler.snapshot import JobFacts, NodeFacts, PendingJob, PutOff, RunningJob, Shape, Share, Snapshot, Usage

__all__ = [
    "schedule", "Snapshot", "NodeFacts", "Shape", "Share", "JobFacts", "PendingJob", "PutOff", "RunningJob", "Usage",
    "Plan", "Start", "Wait", "Eta", "Evict", "Claim", "Reservation",
]  # fmt: skip
